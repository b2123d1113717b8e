"""Batches of many lengths: what PyTorch reserves over a training, not only over the few that were traced.

A batch that is longer than all before it finds no free block that is large enough: the allocator takes new
segments, and what the shorter ones had is split among smaller tensors and stays. How much is reserved in the
end depends on the order in which the lengths come, and a trace has seen one order of a few of them. Here a
training is played in several orders, drawn with fixed seeds. Every batch does the work of one traced step,
with the sizes of a traced batch or with sizes between two that are next to each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, log
from random import Random
from typing import (
    Dict,
    Hashable,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from slurm_gpumem.estimators.allocator import FREE, SMALL_REQUEST, CachingAllocator, Event, simulate
from slurm_gpumem.estimators.allocator_settings import AllocatorSettings
from slurm_gpumem.summaries.trace_types import Trace

ORDERS = 9
"""Orders that are played ..."""
BATCHES = 40
"""... and batches of each ..."""
CALM_BATCHES = 20
"""... unless this number of them in a row has added nothing."""
MOST_EVENTS = 600_000
"""Of all orders together: about a second."""
MANY_LENGTHS = 4
"""Batches of different sizes that a trace must have seen. Fewer are full ones, a last one that is smaller,
and two stages of a model."""
_ALIKE = 0.9
"""Part of a step's allocations that another one must have too, to be a batch of the same work."""

_Place = Tuple[str, str, str, int]
"""Phase, operator and layer of an allocation, and its number among such in its step."""
_SECOND = 2
"""The second step, the first that is like those to come."""
_TAKE, _RELEASE, _RELEASE_PREVIOUS = range(3)


class _Block(NamedTuple):
    """An allocation of the trace."""

    site: int
    step: int
    place: _Place


class _Change(NamedTuple):
    """An event of the trace."""

    step: int
    block: int
    taken: bool


@dataclass(frozen=True)
class _Work:
    """What every batch does: its moves in order, each with the number of one of its allocations."""

    moves: Sequence[Tuple[int, int]]
    places: Sequence[_Place]
    kept: Sequence[int]
    """Allocations that the next batch releases."""


@dataclass(frozen=True)
class _Batches:
    """The sizes of the work's allocations, for each traced batch, the smallest first."""

    sizes: Sequence[Sequence[int]]
    measure: int
    """The allocation that shows how long a batch is, a multiple of ..."""
    grain: int
    """... this number of bytes: the tokens of all its texts, or what they are padded to. 0: not known."""


def growth_by_order(trace: Trace, sizes: Sequence[int], settings: AllocatorSettings) -> Tuple[int, ...]:
    """Bytes reserved beyond what the trace itself shows, for each order, sorted; empty: batches are alike."""
    # Most traces have too few steps; the answer is needed for hundreds of batch sizes then.
    if trace.finished or trace.phases[-1].step < _SECOND + MANY_LENGTHS - 1:
        return ()
    blocks, changes = _read(trace)
    released = {change.block: change.step for change in changes if not change.taken}
    step = _usual_step(trace, changes)
    if step is None:
        return ()
    work = _work(step, blocks, changes, released)
    batches = _batches(trace, work, step, blocks, sizes)
    if batches is None:
        return ()
    work = _only_large(work, batches)
    # What is small has a pool of its own, which hardly grows.
    large = [change for change in changes if sizes[blocks[change.block].site] > SMALL_REQUEST]
    events = [(change.block, sizes[blocks[change.block].site] if change.taken else FREE) for change in large]
    begin = next((number for number, change in enumerate(large) if change.step > 1), len(large))
    left = {
        blocks[change.block].place: change.block
        for change in large[:begin]
        if change.taken and released.get(change.block) == _SECOND
    }
    own = simulate(events, settings).peak_reserved
    most = min(BATCHES, MOST_EVENTS // (ORDERS * max(1, len(work.moves))))
    found: List[int] = []
    for seed in range(ORDERS):
        allocator = CachingAllocator(settings)
        allocator.replay(events[:begin])
        _play(allocator, work, _draws(batches, Random(seed), most), left)
        found.append(allocator.stats().peak_reserved - own)
    return tuple(sorted(found))


def _play(
    allocator: CachingAllocator, work: _Work, draws: Iterable[Sequence[int]], left: Mapping[_Place, int]
) -> None:
    """One training: batch after batch until there are no more, or memory no longer grows."""
    places = work.places
    held: Dict[int, Hashable] = {at: left[places[at]] for at in work.kept if places[at] in left}
    over = set(left.values()) - set(held.values())
    allocator.replay([(key, FREE) for key in over])
    reserved, calm = allocator.stats().peak_reserved, 0
    for count, sizes in enumerate(draws):
        events: List[Event] = []
        now: Dict[int, Hashable] = {}
        for kind, at in work.moves:
            if kind == _TAKE:
                now[at] = (count, at)
                events.append((now[at], sizes[at]))
            elif kind == _RELEASE:
                events.append((now.pop(at), FREE))
            elif at in held:
                events.append((held.pop(at), FREE))
        allocator.replay(events)
        held = now
        calm = calm + 1 if allocator.stats().peak_reserved == reserved else 0
        reserved = allocator.stats().peak_reserved
        if calm == CALM_BATCHES:
            break


def _draws(batches: _Batches, random: Random, most: int) -> Iterator[Sequence[int]]:
    """Sizes of one batch after the other."""
    for _ in range(most):
        at = random.randrange(len(batches.sizes) - 1)
        yield _between(batches, batches.sizes[at], batches.sizes[at + 1], random.random())


def _between(batches: _Batches, one: Sequence[int], two: Sequence[int], part: float) -> Sequence[int]:
    """Sizes of a batch that lies between two."""
    if batches.grain:
        begin, end = one[batches.measure], two[batches.measure]
        if begin == end:
            part = float(round(part))
        else:
            length = round((begin + part * (end - begin)) / batches.grain) * batches.grain
            part = log(length / begin) / log(end / begin)
    # A product of lengths lies between two others as the lengths do, if all are counted by their logarithms.
    return [a if a == b or not a or not b else round(a * (b / a) ** part) for a, b in zip(one, two)]


def _read(trace: Trace) -> Tuple[List[_Block], List[_Change]]:
    """The trace's blocks, in the order of their allocation, and its events."""
    blocks: List[_Block] = []
    changes: List[_Change] = []
    counts: Dict[Tuple[int, str, str, str], int] = {}
    ends = [phase.event for phase in trace.phases[1:]] + [len(trace.events)]
    for phase, end in zip(trace.phases, ends):
        for value in trace.events[phase.event : end]:
            if value < 0:
                changes.append(_Change(phase.step, len(blocks) + value, taken=False))
                continue
            site = trace.sites[value]
            key = (phase.step, phase.name, site.operator, site.module)
            count = counts[key] = counts.get(key, 0) + 1
            changes.append(_Change(phase.step, len(blocks), taken=True))
            blocks.append(_Block(value, phase.step, (phase.name, site.operator, site.module, count)))
    return blocks, changes


def _usual_step(trace: Trace, changes: Sequence[_Change]) -> Optional[int]:
    """The step whose work every batch does: a whole one without anything else, which another one follows."""
    phases = _phases(trace)
    lengths: Dict[int, int] = {}
    for change in changes:
        lengths[change.step] = lengths.get(change.step, 0) + 1
    whole = [step for step in lengths if step > 1 and step + 1 in lengths and "backward" in phases[step]]
    stepping = [step for step in whole if "optimizer" in phases[step]]
    ordered = sorted(stepping or whole, key=lambda step: (lengths[step], step))
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def _phases(trace: Trace) -> Dict[int, Set[str]]:
    """The parts that each step has."""
    found: Dict[int, Set[str]] = {}
    for phase in trace.phases:
        found.setdefault(phase.step, set()).add(phase.name)
    return found


def _work(
    step: int, blocks: Sequence[_Block], changes: Sequence[_Change], released: Mapping[int, int]
) -> _Work:
    """The moves of a step; what it leaves for good is not in them."""
    numbers: Dict[int, int] = {}
    places: List[_Place] = []
    kept: Dict[_Place, int] = {}
    moves: List[Tuple[int, int]] = []
    for change in changes:
        if change.step != step or not change.taken or released.get(change.block) not in (step, step + 1):
            continue
        number = numbers[change.block] = len(places)
        places.append(blocks[change.block].place)
        if released[change.block] == step + 1:
            kept[places[-1]] = number
    for change in changes:
        if change.step != step:
            continue
        if change.block in numbers:
            moves.append((_TAKE if change.taken else _RELEASE, numbers[change.block]))
        elif not change.taken and blocks[change.block].place in kept:
            moves.append((_RELEASE_PREVIOUS, kept[blocks[change.block].place]))
    # A layer that was left out in the step before had nothing to release: its gradient goes with the others.
    released_here = {number for kind, number in moves if kind == _RELEASE_PREVIOUS}
    first = next((at for at, move in enumerate(moves) if move[0] == _RELEASE_PREVIOUS), 0)
    moves[first:first] = [(_RELEASE_PREVIOUS, at) for at in kept.values() if at not in released_here]
    return _Work(moves, places, tuple(kept.values()))


def _batches(
    trace: Trace, work: _Work, usual: int, blocks: Sequence[_Block], sizes: Sequence[int]
) -> Optional[_Batches]:
    """Sizes for each batch; None where too few differ."""
    by_step: Dict[int, Dict[_Place, int]] = {}
    for block in blocks:
        by_step.setdefault(block.step, {})[block.place] = sizes[block.site]
    parts = {step: names - {"optimizer"} for step, names in _phases(trace).items()}
    of_a_batch = [place for place in work.places if place[0] != "optimizer"]
    found = {
        tuple(here.get(place, by_step[usual][place]) for place in work.places)
        for step, here in by_step.items()
        if step > 1
        and parts[step] == parts[usual]
        and sum(place in here for place in of_a_batch) >= _ALIKE * len(of_a_batch)
    }
    if len({sum(one) for one in found}) < MANY_LENGTHS:
        return None
    ordered = sorted(found, key=lambda one: (sum(one), one))
    inputs = {
        block.place
        for block in blocks
        if block.step == usual and trace.sites[block.site].category == "inputs"
    }
    shown = {
        number: {one[number] for one in ordered}
        for number, place in enumerate(work.places)
        if place in inputs
    }
    measure = max(shown, key=lambda number: (len(shown[number]), -number), default=-1)
    if measure < 0 or len(shown[measure]) == 1 or 0 in shown[measure]:
        return _Batches(ordered, 0, 0)
    return _Batches(ordered, measure, gcd(*shown[measure]))


def _only_large(work: _Work, batches: _Batches) -> _Work:
    """Without the allocations that are small in every batch."""
    large = {
        number
        for number in range(len(work.places))
        if max(one[number] for one in batches.sizes) > SMALL_REQUEST
    }
    return _Work(
        [move for move in work.moves if move[1] in large],
        work.places,
        tuple(number for number in work.kept if number in large),
    )
