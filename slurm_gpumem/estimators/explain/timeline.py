"""Live memory over a traced step, event by event, and what was alive at its highest point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

from slurm_gpumem.estimators.allocator.allocator import FREE, ROUNDING
from slurm_gpumem.estimators.traced.replay import allocator_events
from slurm_gpumem.estimators.types import Gpu
from slurm_gpumem.summaries.trace_types import CATEGORIES, Trace


@dataclass(frozen=True)
class Span:
    """A phase of the shown step."""

    name: str
    first: int
    """Index of its first point ..."""
    last: int
    """... and one past its last."""


@dataclass(frozen=True)
class Living:
    """A tensor that was alive at the peak."""

    bytes: int
    operator: str
    layer: str
    category: str
    phase: str
    """The operator and layer that made it."""
    count: int = 1
    """Number of tensors of this size from the same operator of the same layer."""


@dataclass(frozen=True)
class Timeline:
    """One step: how many bytes of each category were alive after each event."""

    step: int
    categories: Tuple[str, ...]
    points: Tuple[Tuple[int, ...], ...]
    """One tuple per event, in the order of `categories`."""
    spans: Tuple[Span, ...]
    peak_point: int
    """Index of the highest point."""
    at_peak: Tuple[Living, ...]
    """What was alive there, largest first."""

    @property
    def totals(self) -> List[int]:
        """Bytes alive after each event."""
        return [sum(point) for point in self.points]

    @property
    def peak_bytes(self) -> int:
        """The highest of them."""
        return sum(self.points[self.peak_point]) if self.points else 0

    @property
    def peak_phase(self) -> str:
        """The phase in which it occurs."""
        return next((s.name for s in self.spans if s.first <= self.peak_point < s.last), "setup")


def timeline(trace: Trace, batch: int, gpu: Gpu) -> Timeline:
    """The step with the peak; among equals a steady one rather than the first."""
    sizes = _sizes(trace, batch, gpu)
    order = {name: at for at, name in enumerate(CATEGORIES)}
    categories = [order[site.category] for site in trace.sites]
    live = [0] * len(CATEGORIES)
    points: List[Tuple[int, ...]] = []
    blocks: List[int] = []
    for value in trace.events:
        if value >= 0:
            blocks.append(value)
            live[categories[value]] += sizes[value]
        else:
            site = blocks[value]
            live[categories[site]] -= sizes[site]
        points.append(tuple(live))
    totals = [sum(point) for point in points]
    peak = _peak_event(trace, totals)
    step, first, last = _step_of(trace, peak)
    return Timeline(
        step=step,
        categories=CATEGORIES,
        points=tuple(points[first:last]),
        spans=_spans(trace, first, last),
        peak_point=max(0, peak - first),
        at_peak=tuple(_alive(trace, sizes, peak)),
    )


def _sizes(trace: Trace, batch: int, gpu: Gpu) -> List[int]:
    """Bytes of a block of each site, as the allocator rounds them."""
    sizes = [0] * len(trace.sites)
    for value, (_, size) in zip(trace.events, allocator_events(trace, batch, gpu)):
        if size != FREE:
            sizes[value] = -(-size // ROUNDING) * ROUNDING
    return sizes


def _peak_event(trace: Trace, totals: Sequence[int]) -> int:
    """The first event of the highest total; in the steady steps if they are as high as the first."""
    if not totals:
        return 0
    most = max(totals)
    steady = next((p.event for p in trace.phases if p.step == 2), len(totals))
    later = [at for at in range(steady, len(totals)) if totals[at] == most]
    return later[0] if later else totals.index(most)


def _step_of(trace: Trace, event: int) -> Tuple[int, int, int]:
    """(number, first event, one past the last) of the step that an event belongs to."""
    step = trace.phase_of(event).step
    inside = [p.event for p in trace.phases if p.step == step]
    after = [p.event for p in trace.phases if p.step > step]
    return step, min(inside), min(after, default=len(trace.events))


def _spans(trace: Trace, first: int, last: int) -> Tuple[Span, ...]:
    starts = [(p.event, p.name) for p in trace.phases if first <= p.event < last]
    ends = [event for event, _ in starts[1:]] + [last]
    found = [
        Span(name, event - first, end - first) for (event, name), end in zip(starts, ends) if end > event
    ]
    return tuple(found)


def _alive(trace: Trace, sizes: Sequence[int], peak: int) -> List[Living]:
    made: Dict[int, Tuple[int, int]] = {}
    for event, block, site in trace.allocations():
        if event > peak:
            break
        if site is None:
            made.pop(block, None)
        else:
            made[block] = (event, trace.events[event])
    groups: Dict[Tuple[int, str], int] = {}
    for event, site_number in made.values():
        phase = trace.phase_of(event).name
        groups[(site_number, phase)] = groups.get((site_number, phase), 0) + 1
    found = [
        Living(
            bytes=sizes[number],
            operator=trace.sites[number].operator,
            layer=trace.sites[number].module,
            category=trace.sites[number].category,
            phase=phase,
            count=count,
        )
        for (number, phase), count in groups.items()
        if sizes[number]
    ]
    return sorted(found, key=lambda one: (-one.bytes, one.layer))
