"""Numbers that a script counts by hand: what a loop's rounds add to, how to set them, what they change."""

from __future__ import annotations

import ast
from collections import deque
from functools import lru_cache
from types import FrameType
from typing import Any, Callable, Deque, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from slurm_gpumem.tracing.engine.value_dependent_code import name_of_call, parsed
from slurm_gpumem.tracing.follow import loops
from slurm_gpumem.tracing.follow.loops import Loop

_LONGEST = 8
"""Batches of a step, as far as what is counted once a step is found."""


class Counted(NamedTuple):
    """A number that every round of a loop raises."""

    value: int
    step: int


def counters(loop: Loop, frame: FrameType) -> Dict[str, Counted]:
    """What each round adds a whole number to: `step += 1`, `self.step += 1`, whatever else it does."""
    found = {}
    for node in _always(loop.node.body):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            value, step = (
                loops.value_of(node.target, frame),
                loops.value_of(node.value, frame),
            )
            if type(value) is int and type(step) is int and step > 0:
                found[ast.unparse(node.target)] = Counted(value, step)
    return found


def counts(path: str, frame: FrameType) -> Dict[str, int]:
    """What the file's code adds to anywhere, as far as it is a whole number now."""
    values = {name: loops.value_of(node, frame) for name, node in _added_to(path)}
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


class Measured:
    """What a loop over batches counts, whatever stands before it: `if sync: step += 1` every fourth time."""

    def __init__(self) -> None:
        self._seen: Deque[Dict[str, int]] = deque(maxlen=2 * _LONGEST + 1)
        self._growth: Dict[str, int] = {}
        self.batches = 0
        """In a round, after which all that is counted has grown as in the one before; 0: not known yet."""

    def look(self, loop: Loop, frame: FrameType, *, again: bool) -> None:
        """Before each batch; `again` where batches were left out before it, so that counting begins again."""
        if again:
            self._seen.clear()
        if not self.batches:
            self._seen.append(counts(loop.path, frame))

    def counted(self, loop: Loop, frame: FrameType) -> Dict[str, Counted]:
        """What it counts, and how much in a round."""
        here = counts(loop.path, frame)
        found = {name: Counted(here[name], by) for name, by in self._growth.items() if name in here}
        return {**self.in_round(counters(loop, frame)), **found}

    def in_round(self, counted: Dict[str, Counted]) -> Dict[str, Counted]:
        """What each batch raises, in a round."""
        return {name: Counted(at, by * max(1, self.batches)) for name, (at, by) in counted.items()}

    def waits(self, loop: Loop, frame: FrameType) -> bool:
        """Whether a few more batches may show how often what stands behind a condition is counted."""
        if self.batches or len(self._seen) > 2 * _LONGEST:
            return False
        self._settle()
        added = {ast.unparse(one.target) for one in ast.walk(loop.node) if isinstance(one, ast.AugAssign)}
        return not self.batches and bool(added & {*counts(loop.path, frame)} - {*counters(loop, frame)})

    def _settle(self) -> None:
        """Rounds as short as possible in which the most grows steadily."""
        for batches in range(1, (len(self._seen) - 1) // 2 + 1):
            seen = [*self._seen]
            parts = [steady(seen[at::batches]) for at in range(batches)]
            growth = {name: by for name, by in parts[0].items() if all(one.get(name) == by for one in parts)}
            if len(growth) > len(self._growth):
                self.batches, self._growth = batches, growth


def numbered(loop: Loop, frame: FrameType) -> Dict[str, Counted]:
    """The variable of `for number, batch in enumerate(loader)`, which is still that of the round before."""
    node: Any = loop.node
    calls = [
        one for one in ast.walk(node.iter) if isinstance(one, ast.Call) and name_of_call(one) == "enumerate"
    ]
    if not calls or not isinstance(node.target, ast.Tuple) or not isinstance(node.target.elts[0], ast.Name):
        return {}
    name = node.target.elts[0].id
    value = loops.known_in(frame).get(name)
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
            vars(loops.value_of(ast.parse(owner, mode="eval").body, frame))[attribute] = later
        elif name in frame.f_code.co_varnames + frame.f_code.co_cellvars + frame.f_code.co_freevars:
            loops.set_local(frame, name, later)
        else:
            frame.f_globals[name] = later


# Where the rounds of a loop begin to differ, as its code says: `size = 96 if epoch < 5 else 224`.
#
# A trace does not run every round of a long training. Which ones it must not leave out follows from what the
# loop's variable, and what it counts by hand, is compared with, divided by, or taken the remainder of.


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
        value = loops.value_of(node, self._frame)
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
        for one in value if isinstance(value, loops.CONTAINERS) else [value]:
            if type(one) in (int, float) and abs(one) < 1 << 62:
                yield int(one)
