"""Loops of a script's code, and which of them a frame is in."""

from __future__ import annotations

import ast
from functools import lru_cache
from types import FrameType
from typing import Any, FrozenSet, Iterator, List, NamedTuple, Optional, Set, Tuple, Union

from slurm_gpumem.tracing.engine.value_dependent_code import name_of_call, parsed
from slurm_gpumem.tracing.script import script_values

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
    value = script_values.value_of(node, frame)
    return max(1, len(value)) if isinstance(value, script_values.CONTAINERS) else _UNKNOWN_ROUNDS
