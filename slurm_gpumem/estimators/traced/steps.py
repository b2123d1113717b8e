"""Steps beyond those of a trace: what comes after the last one, if training goes on like this.

Reserved memory may still grow in the fourth or fifth step, when blocks lie where others used to be. A trace
has two or three steps; more of them repeat the last one, except that they release what the one before them
left.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Set, Tuple

from slurm_gpumem.summaries.trace_types import Trace

_Place = Tuple[str, str, str, str, int]
"""Phase, operator, layer and category of an allocation, and which of such in its step."""


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
    found: List[Tuple[int, _Place]] = []
    counts: Dict[Tuple[int, str, str, str, str], int] = {}
    ends = [phase.event for phase in trace.phases[1:]] + [len(trace.events)]
    for phase, end in zip(trace.phases, ends):
        for value in trace.events[phase.event : end]:
            if value >= 0:
                site = trace.sites[value]
                key = (phase.step, phase.name, site.operator, site.module, site.category)
                count = counts[key] = counts.get(key, 0) + 1
                found.append((phase.step, (*key[1:], count)))
    return found
