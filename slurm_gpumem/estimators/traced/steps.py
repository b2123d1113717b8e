"""Steps beyond those of a trace: what comes after the last one, if training goes on like this.

Reserved memory may still grow in the fourth or fifth step, when blocks lie where others used to be. A trace
has two or three steps; more of them repeat the last one, except that they release what the one before them
left.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Set, Tuple

from slurm_gpumem.summaries.trace_types import Trace

_Place = Tuple[str, int, int]
"""Phase of an allocation, its operator, layer and category as a number, and which of such in its step."""


def further_step(trace: Trace) -> Optional[List[int]]:
    """The events of one step more, as `Trace.events`; None where the last two steps differ too much."""
    last = max(phase.step for phase in trace.phases)
    first = next(phase.event for phase in trace.phases if phase.step == last)
    if last < 2:
        return None
    places, gone = _places(trace), _released(trace)
    begin = sum(value >= 0 for value in trace.events[:first])
    again = {place: block for block, (step, place) in enumerate(places) if step == last and block not in gone}
    events: List[int] = []
    before, now = begin, len(places)
    for value in trace.events[first:]:
        if value >= 0:
            events.append(value)
            before += 1
            now += 1
            continue
        block = before + value
        if block >= begin:
            # Of the step's own: as far back as it was.
            events.append(value)
            continue
        step, place = places[block]
        if step != last - 1 or place not in again:
            return None
        events.append(again[place] - now)
    # A step that does not release as much as it takes would go on growing.
    return events if now - len(places) == len(events) / 2 else None


def _released(trace: Trace) -> Set[int]:
    """Blocks that no longer live when the trace ends."""
    found, block = set(), 0
    for value in trace.events:
        if value >= 0:
            block += 1
        else:
            found.add(block + value)
    return found


def _places(trace: Trace) -> List[Tuple[int, _Place]]:
    """Of each block in the order of allocation: its step and its place in it."""
    numbers: Dict[Tuple[str, str, str], int] = {}
    kinds = [
        numbers.setdefault((site.operator, site.module, site.category), len(numbers)) for site in trace.sites
    ]
    found: List[Tuple[int, _Place]] = []
    ends = [phase.event for phase in trace.phases[1:]] + [len(trace.events)]
    counts: Dict[Tuple[int, str], List[int]] = {}
    for (begin, name, step), end in zip(trace.phases, ends):
        seen = counts.setdefault((step, name), [0] * len(numbers))
        for value in trace.events[begin:end]:
            if value >= 0:
                kind = kinds[value]
                seen[kind] += 1
                found.append((step, (name, kind, seen[kind])))
    return found
