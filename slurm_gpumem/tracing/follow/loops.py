"""Loops of a script's code, which of them a frame is in, and values of its variables."""

from __future__ import annotations

import ast
import ctypes
import sys
from functools import lru_cache
from inspect import CO_OPTIMIZED
from types import FrameType
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Set, Tuple, Union

from slurm_gpumem.tracing.engine.value_dependent_code import name_of_call, parsed

PLAIN = (bool, int, float, str, type(None))
CONTAINERS = (list, tuple, set, frozenset, dict, range)


def known_in(frame: FrameType) -> Dict[str, Any]:
    """A function's variables, without keeping them: before Python 3.13 a frame that was asked for them holds
    on to their values, tensors among them, until it is asked again."""
    seen = frame.f_locals
    found = dict(seen)
    if frame.f_code.co_flags & CO_OPTIMIZED and type(seen) is dict:
        for name, value in found.items():
            if not isinstance(value, PLAIN):
                del seen[name]
    return found


def value_of(node: ast.expr, frame: FrameType) -> Any:
    """Of what is plain: numbers, names, fields of objects and dicts, lengths, sums; None of the rest."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        value = known_in(frame).get(node.id, frame.f_globals.get(node.id))
        return value if isinstance(value, (*PLAIN, *CONTAINERS)) or hasattr(value, "__dict__") else None
    if isinstance(node, ast.Attribute):
        return getattr(value_of(node.value, frame), "__dict__", {}).get(node.attr)
    if isinstance(node, ast.Subscript):
        of, key = value_of(node.value, frame), value_of(node.slice, frame)
        return of.get(key) if type(of) is dict and isinstance(key, PLAIN) else None
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        values = [value_of(part, frame) for part in node.elts]
        return None if any(value is None for value in values) else values
    if isinstance(node, ast.Call) and name_of_call(node) == "len" and len(node.args) == 1:
        of = value_of(node.args[0], frame)
        return len(of) if hasattr(type(of), "__len__") else None
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = value_of(node.left, frame), value_of(node.right, frame)
        if type(left) in (int, float) and type(right) in (int, float):
            return _ARITHMETIC[type(node.op)](left, right)
    return None


_ARITHMETIC: Dict[Any, Callable[[Any, Any], Any]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right if right else None,
    ast.FloorDiv: lambda left, right: left // right if right else None,
    ast.Pow: lambda left, right: left**right if 0 <= right < 64 and abs(left) < 1 << 16 else None,
}


def set_local(frame: FrameType, name: str, value: int) -> None:
    """Give a variable of a function another value."""
    known_in(frame)
    frame.f_locals[name] = value
    if sys.version_info < (3, 13):
        # The dict is a copy: what is in it, plain values only, goes back to the frame.
        seen = frame.f_locals
        for other, kept in list(seen.items()):
            if not isinstance(kept, PLAIN):
                del seen[other]
        seen[name] = value
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


_UNKNOWN_ROUNDS = 8
"""Taken of an outer loop over something that has no length yet."""
_WRAPS = {"enumerate", "tqdm", "zip", "sorted", "reversed", "list"}
_Node = Union[ast.For, ast.While]


class Loop(NamedTuple):
    """A loop of a script's code."""

    path: str
    node: _Node
    expressions: Tuple[ast.expr, ...]
    """In its body, and in functions of the file that take a variable of its variable's name."""

    @property
    def variables(self) -> Set[str]:
        """Names that its header sets."""
        target = self.node.target if isinstance(self.node, ast.For) else self.node.test
        return {one.id for one in ast.walk(target) if isinstance(one, ast.Name)}

    def holds(self, line: int) -> bool:
        """Whether a line is one of its own."""
        return self.node.lineno <= line <= (self.node.end_lineno or self.node.lineno)


@lru_cache(maxsize=256)
def loops_of(path: str) -> Tuple[Loop, ...]:
    """Of a file; inner ones after outer ones."""
    tree = parsed(path)
    functions = [one for one in ast.walk(tree) if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.While)):
            loop = Loop(path, node, ())
            named = {one.arg: function for function in functions for one in function.args.args}
            called = [named[name] for name in sorted(loop.variables) if name in named]
            parts = [node.test] if isinstance(node, ast.While) else []
            places: List[ast.AST] = [*parts, *node.body, *called]
            found.append(loop._replace(expressions=tuple(_deciding(places))))
    return tuple(sorted(found, key=lambda loop: loop.node.lineno))


@lru_cache(maxsize=256)
def lines_of_ranges(path: str) -> FrozenSet[int]:
    """Lines on which a range may be made that a loop is over: headers, and bars that get a name first."""
    headers = [loop.node.iter for loop in loops_of(path) if isinstance(loop.node, ast.For)]
    named = (node.value for node in ast.walk(parsed(path)) if isinstance(node, ast.Assign))
    bars = [one for one in named if isinstance(one, ast.Call) and name_of_call(one) == "tqdm"]
    made = [one for one in (*headers, *bars) if _is_over_range(one)]
    return frozenset(line for one in made for line in range(one.lineno, (one.end_lineno or one.lineno) + 1))


def is_open(loop: Loop) -> bool:
    """Whether numbers that it compares end a loop, not what it is over: `while`, `count()`, or a `break`."""
    node = loop.node
    if isinstance(node, ast.While):
        return True
    endless = isinstance(node.iter, ast.Call) and name_of_call(node.iter) == "count"
    leaves = any(isinstance(one, (ast.Break, ast.Return)) for part in node.body for one in ast.walk(part))
    return endless or (leaves and not _is_over_range(node.iter))


def bounds(loop: Loop) -> Loop:
    """The loop with those of its expressions that may end it: what comes every hundred steps does not."""
    found = (one for one in loop.expressions if isinstance(one, ast.Compare))
    kept = [one for one in found if not any(isinstance(part, ast.Mod) for part in ast.walk(one))]
    return loop._replace(expressions=tuple(kept))


def _is_over_range(node: ast.expr) -> bool:
    """Whether rounds are those of a range: not of a sample of one."""
    if not isinstance(node, ast.Call):
        return False
    name = name_of_call(node)
    return name == "range" or (name in ("tqdm", "enumerate", "zip") and any(map(_is_over_range, node.args)))


def _deciding(places: List[ast.AST]) -> Iterator[ast.expr]:
    for place in places:
        for node in ast.walk(place):
            if isinstance(node, ast.Compare) or (
                isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mod, ast.FloorDiv))
            ):
                yield node


def loops_around(frame: FrameType) -> List[Loop]:
    """The loops that the line at work in a frame is in, the innermost last."""
    code = frame.f_code
    # A function's own: a loop outside of it does not run its lines.
    found = [loop for loop in loops_of(code.co_filename) if loop.holds(frame.f_lineno)]
    return [loop for loop in found if loop.node.lineno >= code.co_firstlineno]


def loop_over(frame: FrameType) -> Optional[Loop]:
    """The loop that asks for what its next round is about, in this frame."""
    for loop in reversed(loops_around(frame)):
        header = getattr(loop.node, "iter", None)
        if header is not None and header.lineno <= frame.f_lineno <= header.end_lineno:
            return loop
    return None


def rounds_of(loop: Loop, frame: FrameType) -> int:
    """How many rounds a loop has, as far as its header tells."""
    if isinstance(loop.node, ast.While):
        return _UNKNOWN_ROUNDS
    node: Any = loop.node.iter
    while isinstance(node, ast.Call) and name_of_call(node) in _WRAPS and node.args:
        node = node.args[0]
    value = value_of(node, frame)
    return max(1, len(value)) if isinstance(value, CONTAINERS) else _UNKNOWN_ROUNDS
