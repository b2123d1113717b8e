"""Where the rounds of a loop begin to differ, as its code says: `size = 96 if epoch < 5 else 224`.

A trace does not run every round of a long training. Which ones it must not leave out follows from what the
loop's variable, and what it counts by hand, is compared with, divided by, or taken the remainder of.
"""

from __future__ import annotations

import ast
import ctypes
import sys
from functools import lru_cache
from inspect import CO_OPTIMIZED
from types import FrameType
from typing import (
    Any,
    Callable,
    Dict,
    FrozenSet,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

from slurm_gpumem.tracing.loops_of_code import parsed

_CHANGES = 8
"""Of one expression that are looked at: a message every hundred steps is no stage."""
_SCANNED = 20_000
"""Rounds ahead in which remainders are tried one by one; beyond them only numbers that the code names."""
_UNKNOWN_ROUNDS = 8
"""Taken of an outer loop over something that has no length yet."""
_WRAPS = {"enumerate", "tqdm", "zip", "sorted", "reversed", "list"}
_PLAIN = (bool, int, float, str, type(None))
_CONTAINERS = (list, tuple, set, frozenset, dict, range)
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


class Counted(NamedTuple):
    """A number that every round of a loop raises."""

    value: int
    step: int


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
    bars = [one for one in named if isinstance(one, ast.Call) and _name_of(one) == "tqdm"]
    made = [one for one in (*headers, *bars) if _is_over_range(one)]
    return frozenset(line for one in made for line in range(one.lineno, (one.end_lineno or one.lineno) + 1))


def _is_over_range(node: ast.expr) -> bool:
    """Whether rounds are those of a range: not of a sample of one."""
    if not isinstance(node, ast.Call):
        return False
    name = _name_of(node)
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
    while isinstance(node, ast.Call) and _name_of(node) in _WRAPS and node.args:
        node = node.args[0]
    value = _value(node, frame)
    return max(1, len(value)) if isinstance(value, _CONTAINERS) else _UNKNOWN_ROUNDS


def _name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


# -- Numbers that a script counts by hand ----------------------------------------------------------


def counters(loop: Loop, frame: FrameType) -> Dict[str, Counted]:
    """What each round adds a whole number to: `step += 1`, `self.step += 1`, whatever else it does."""
    found = {}
    for node in _always(loop.node.body):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            value, step = _value(node.target, frame), _value(node.value, frame)
            if type(value) is int and type(step) is int and step > 0:
                found[ast.unparse(node.target)] = Counted(value, step)
    return found


def counts(path: str, frame: FrameType) -> Dict[str, int]:
    """What the file's code adds to anywhere, as far as it is a whole number now."""
    values = {name: _value(node, frame) for name, node in _added_to(path)}
    return {name: value for name, value in values.items() if type(value) is int}


@lru_cache(maxsize=256)
def _added_to(path: str) -> Tuple[Tuple[str, ast.expr], ...]:
    nodes = (node.target for node in ast.walk(parsed(path)) if isinstance(node, ast.AugAssign))
    return tuple({ast.unparse(node): node for node in nodes}.items())


def steady(rounds: Sequence[Dict[str, int]]) -> Dict[str, int]:
    """What has grown by as much in each of the last rounds, whatever loops and functions are in them."""
    found = {}
    for name, value in rounds[-1].items():
        values = [one.get(name, value) for one in rounds]
        grown = {after - before for before, after in zip(values, values[1:])}
        if len(grown) == 1 and min(grown) > 0:
            found[name] = min(grown)
    return found


def numbered(loop: Loop, frame: FrameType) -> Dict[str, Counted]:
    """The variable of `for number, batch in enumerate(loader)`, which is still that of the round before."""
    node: Any = loop.node
    calls = [one for one in ast.walk(node.iter) if isinstance(one, ast.Call) and _name_of(one) == "enumerate"]
    if not calls or not isinstance(node.target, ast.Tuple) or not isinstance(node.target.elts[0], ast.Name):
        return {}
    name = node.target.elts[0].id
    value = known_in(frame).get(name)
    return {name: Counted(value, 1)} if type(value) is int else {}


def _always(body: List[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that no condition stands before."""
    for node in body:
        yield node
        if isinstance(node, (ast.With, ast.Try)):
            yield from _always(node.body)


def advance(frame: FrameType, counted: Dict[str, Counted], rounds: int) -> None:
    """Set what is counted by hand to what it is this many rounds later."""
    for name, (value, step) in counted.items():
        later = value + rounds * step
        owner, _, attribute = name.rpartition(".")
        if owner:
            vars(_value(ast.parse(owner, mode="eval").body, frame))[attribute] = later
        elif name in frame.f_code.co_varnames + frame.f_code.co_cellvars + frame.f_code.co_freevars:
            _set_local(frame, name, later)
        else:
            frame.f_globals[name] = later


def _set_local(frame: FrameType, name: str, value: int) -> None:
    known_in(frame)
    frame.f_locals[name] = value
    if sys.version_info < (3, 13):
        # The dict is a copy: what is in it, plain values only, goes back to the frame.
        seen = frame.f_locals
        for other, kept in list(seen.items()):
            if not isinstance(kept, _PLAIN):
                del seen[other]
        seen[name] = value
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


# -- Rounds at which something changes -------------------------------------------------------------


def changes(loop: Loop, frame: FrameType, counted: Dict[str, Counted], rounds: int) -> List[int]:
    """How many rounds from now one of the loop's expressions has another value than a round before it."""
    found: Set[int] = set()
    for node in loop.expressions:
        asked = _Asked(counted, frame)
        try:
            value_at = asked.function(node)
            if value_at is not None:
                for later in _changes(value_at, asked.near(rounds), rounds):
                    # The round after it, too: a counter may be raised before it is looked at, or after.
                    found.update((later, min(later + 1, rounds)))
        except _ERRORS:
            continue  # not a number, or no value yet: nothing is known of it
    return sorted(found)


_ERRORS = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError)


def _changes(value_at: Callable[[int], Any], named: List[int], rounds: int) -> Iterator[int]:
    before = value_at(0)
    left = _CHANGES
    for later in range(1, min(rounds, _SCANNED) + 1):
        now = value_at(later)
        if now != before:
            yield later
            left -= 1
            if not left:
                break
        before = now
    for later in named:
        if value_at(later) != value_at(later - 1):
            yield later


class _Asked:
    """An expression of numbers that are counted, and of others that stay as they are."""

    def __init__(self, counted: Dict[str, Counted], frame: FrameType) -> None:
        self._counted = counted
        self._frame = frame
        self._names: Dict[str, Any] = {}
        self._used: List[str] = []

    def function(self, node: ast.expr) -> Optional[Callable[[int], Any]]:
        """Its value some rounds later; None where it depends on nothing that is counted."""
        body = self._with_values(node)
        if not self._used:
            return None
        code = compile(ast.fix_missing_locations(ast.Expression(body)), "<stage>", "eval")
        names = {"__builtins__": {}, **self._names}
        used = [(f"counted{number}", self._counted[name]) for number, name in enumerate(self._used)]
        truth = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)

        def value_at(later: int) -> Any:
            for name, (value, step) in used:
                names[name] = value + later * step
            found = eval(code, names)  # an expression without calls, of the script's own
            return bool(found) if truth else found

        return value_at

    def near(self, rounds: int) -> List[int]:
        """Rounds around those at which a counted number is one of the numbers in the expression."""
        found: Set[int] = set()
        for value, step in (self._counted[name] for name in self._used):
            for number in _numbers(self._names.values()):
                at = (number - value) // step
                found.update(later for later in range(at - 1, at + 3) if 1 <= later <= rounds)
        return sorted(found)

    def _with_values(self, node: Any) -> Any:
        if isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) in self._counted:
            name = ast.unparse(node)
            if name not in self._used:
                self._used.append(name)
            return ast.Name(f"counted{self._used.index(name)}", ast.Load())
        value = _value(node, self._frame)
        if value is not None and not any(
            isinstance(one, (ast.Name, ast.Attribute)) and ast.unparse(one) in self._counted
            for one in ast.walk(node)
        ):
            name = f"value{len(self._names)}"
            self._names[name] = value
            return ast.Name(name, ast.Load())
        if isinstance(node, ast.Compare):
            sides = [self._with_values(side) for side in node.comparators]
            return ast.Compare(self._with_values(node.left), node.ops, sides)
        if isinstance(node, ast.BinOp):
            return ast.BinOp(self._with_values(node.left), node.op, self._with_values(node.right))
        if isinstance(node, ast.UnaryOp):
            return ast.UnaryOp(node.op, self._with_values(node.operand))
        raise ValueError("depends on more than numbers")


def _numbers(values: Any) -> Iterator[int]:
    for value in values:
        for one in value if isinstance(value, _CONTAINERS) else [value]:
            if type(one) in (int, float) and abs(one) < 1 << 62:
                yield int(one)


# -- Values of a script's variables ----------------------------------------------------------------


def known_in(frame: FrameType) -> Dict[str, Any]:
    """A function's variables, without keeping them: before Python 3.13 a frame that was asked for them holds
    on to their values, tensors among them, until it is asked again."""
    seen = frame.f_locals
    found = dict(seen)
    if frame.f_code.co_flags & CO_OPTIMIZED and type(seen) is dict:
        for name, value in found.items():
            if not isinstance(value, _PLAIN):
                del seen[name]
    return found


def _value(node: ast.expr, frame: FrameType) -> Any:
    """Of what is plain: numbers, names, fields of objects and dicts, lengths, sums; None of the rest."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        value = known_in(frame).get(node.id, frame.f_globals.get(node.id))
        return value if isinstance(value, (*_PLAIN, *_CONTAINERS)) or hasattr(value, "__dict__") else None
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, frame), "__dict__", {}).get(node.attr)
    if isinstance(node, ast.Subscript):
        of, key = _value(node.value, frame), _value(node.slice, frame)
        return of.get(key) if type(of) is dict and isinstance(key, _PLAIN) else None
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        values = [_value(part, frame) for part in node.elts]
        return None if any(value is None for value in values) else values
    if isinstance(node, ast.Call) and _name_of(node) == "len" and len(node.args) == 1:
        of = _value(node.args[0], frame)
        return len(of) if hasattr(type(of), "__len__") else None
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _value(node.left, frame), _value(node.right, frame)
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
