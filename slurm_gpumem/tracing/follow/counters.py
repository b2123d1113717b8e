"""Numbers that a script counts by hand: what each round of a loop adds to, and how to set them."""

from __future__ import annotations

import ast
from collections import deque
from functools import lru_cache
from types import FrameType
from typing import Any, Deque, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from slurm_gpumem.tracing.engine.value_dependent_code import name_of_call, parsed
from slurm_gpumem.tracing.follow.loops import Loop
from slurm_gpumem.tracing.script import script_values

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
                script_values.value_of(node.target, frame),
                script_values.value_of(node.value, frame),
            )
            if type(value) is int and type(step) is int and step > 0:
                found[ast.unparse(node.target)] = Counted(value, step)
    return found


def counts(path: str, frame: FrameType) -> Dict[str, int]:
    """What the file's code adds to anywhere, as far as it is a whole number now."""
    values = {name: script_values.value_of(node, frame) for name, node in _added_to(path)}
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
    value = script_values.known_in(frame).get(name)
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
            vars(script_values.value_of(ast.parse(owner, mode="eval").body, frame))[attribute] = later
        elif name in frame.f_code.co_varnames + frame.f_code.co_cellvars + frame.f_code.co_freevars:
            script_values.set_local(frame, name, later)
        else:
            frame.f_globals[name] = later
