"""Where the rounds of a loop begin to differ, as its code says: `size = 96 if epoch < 5 else 224`.

A trace does not run every round of a long training. Which ones it must not leave out follows from what the
loop's variable, and what it counts by hand, is compared with, divided by, or taken the remainder of.
"""

from __future__ import annotations

import ast
from types import FrameType
from typing import Any, Callable, Dict, Iterator, List, Optional, Set

from slurm_gpumem.tracing.follow.counters import Counted
from slurm_gpumem.tracing.follow.loops import Loop
from slurm_gpumem.tracing.script import script_values

_CHANGES = 8
"""Of one expression that are looked at: a message every hundred steps is no stage."""
_SCANNED = 20_000
"""Rounds ahead in which remainders are tried one by one; beyond them only numbers that the code names."""


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
        remainder = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)
        passes = remainder and max(self._counted[name].step for name in self._used) > 1
        if passes:  # a round raises it by more than one: whether a multiple lies on the way
            body = ast.BinOp(body.left, ast.FloorDiv(), body.right)
        code = compile(ast.fix_missing_locations(ast.Expression(body)), "<stage>", "eval")
        names = {"__builtins__": {}, **self._names}
        used = [(f"counted{number}", self._counted[name]) for number, name in enumerate(self._used)]

        def value_at(later: int) -> Any:
            for name, (value, step) in used:
                names[name] = value + later * step
            found = eval(code, names)  # an expression without calls, of the script's own
            return bool(found) if remainder and not passes else found

        in_every_round = passes and all(value_at(later) != value_at(later + 1) for later in range(3))
        return None if in_every_round else value_at

    def near(self, rounds: int) -> List[int]:
        """Rounds around those at which a counted number is one of the numbers in the expression."""
        found: Set[int] = set()
        for value, step in (self._counted[name] for name in self._used):
            for number in _numbers(self._names.values()):
                # Of `step % number`, the next multiples that lie beyond what is tried one by one.
                multiples = range(value // number + 1, value // number + 1 + _CHANGES) if number > 0 else ()
                ats = [(number * one - value) // step for one in multiples]
                for at in [(number - value) // step, *(at for at in ats if at > _SCANNED)]:
                    found.update(later for later in range(at - 1, at + 3) if 1 <= later <= rounds)
        return sorted(found)

    def _with_values(self, node: Any) -> Any:
        if isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) in self._counted:
            name = ast.unparse(node)
            if name not in self._used:
                self._used.append(name)
            return ast.Name(f"counted{self._used.index(name)}", ast.Load())
        value = script_values.value_of(node, self._frame)
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
        for one in value if isinstance(value, script_values.CONTAINERS) else [value]:
            if type(one) in (int, float) and abs(one) < 1 << 62:
                yield int(one)
