"""Why a traced job needs what it needs, and what would lower its peak most.

Each change is applied to the traced steps, which are then replayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.allocator.allocator import FREE, ROUNDING
from slurm_gpumem.estimators.traced import changes
from slurm_gpumem.estimators.traced.replay import allocator_events, replay
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.summaries.trace_types import CATEGORIES, Trace, scale
from slurm_gpumem.summaries.types import Layer, ModelSummary
from slurm_gpumem.units import MIB

# Live memory over a traced step, event by event, and what was alive at its highest point.


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


_FAMILIES = 3
_SINGLES = 3
_PARTS = 4
"""The loss is computed on a quarter of the batch at a time."""
_LEAST = 0.01
"""Changes that save a smaller fraction of the peak are not listed."""


@dataclass(frozen=True)
class Advice:
    """One change, and the memory that the same job would use with it."""

    name: str
    """For scripts: "checkpoint", "amp", "half-batch", "loss-in-parts", "no-foreach"."""
    what: str
    """For people."""
    allocated_mib: int
    reserved_mib: int
    saves_mib: int
    """Of reserved memory, which is what the process uses."""
    exact: bool
    """Whether the change follows from the trace alone, or from a rule (autocast's list of operators)."""
    detail: Tuple[str, ...] = ()
    """The layers it concerns."""


def advice(summary: ModelSummary, batch: int, gpu: Gpu, timeline: Timeline) -> Tuple[Advice, ...]:
    """All changes that save something, the best first."""
    trace = summary.trace
    assert trace is not None
    base = replay(trace, batch, gpu)
    reserved = base.stats.peak_reserved
    found: List[Advice] = []

    def try_change(
        name: str,
        what: str,
        make: Callable[[], Trace],
        *,
        exact: bool = True,
        at: Optional[int] = None,
        detail: Sequence[str] = (),
    ) -> None:
        stats = replay(make(), at or batch, gpu).stats
        saved = reserved - stats.peak_reserved
        if saved >= _LEAST * reserved:
            found.append(
                Advice(
                    name=name,
                    what=what,
                    allocated_mib=round(stats.peak_allocated / MIB),
                    reserved_mib=round(stats.peak_reserved / MIB),
                    saves_mib=round(saved / MIB),
                    exact=exact,
                    detail=tuple(detail),
                )
            )

    if batch > 1 and trace.scalable:
        half = batch // 2
        what = f"half the batch ({half}), twice the steps"
        try_change("half-batch", what, lambda: scale(trace, half), at=half)
    if trace.job.precision in ("fp32", "tf32") and not trace.job.evaluate:
        try_change("amp", "AMP (--precision amp-bf16)", lambda: changes.autocast(trace), exact=False)
    sizes = {layer.name: _elements(layer) for layer in summary.layers}
    for what, blocks in _checkpoints(summary, timeline):
        named = {name: sizes[name] for name in blocks}
        change = partial(changes.checkpointed, trace, named)
        try_change("checkpoint", what, change, detail=blocks)
    head = changes.head_of(trace)
    if head and _is_large(trace, head, batch, timeline):
        what = f"loss in {_PARTS} parts: {head} and what follows on a quarter of the batch at a time"
        try_change("loss-in-parts", what, lambda: changes.loss_in_parts(trace, head, _PARTS), detail=[head])
    if trace.job.optimizer:
        try_change("no-foreach", "optimizer with foreach=False", lambda: changes.without_foreach(trace))
    return tuple(sorted(_best_of_kind(found), key=lambda one: -one.saves_mib))


def _best_of_kind(found: Sequence[Advice]) -> List[Advice]:
    """Of the checkpoints only the best family and the best single block; all others unchanged."""
    kept: List[Advice] = [one for one in found if one.name != "checkpoint"]
    checkpoints = [one for one in found if one.name == "checkpoint"]
    for several in (True, False):
        group = [one for one in checkpoints if (len(one.detail) > 1) == several]
        kept += [max(group, key=lambda one: one.saves_mib)] if group else []
    return kept


def _checkpoints(summary: ModelSummary, timeline: Timeline) -> List[Tuple[str, Tuple[str, ...]]]:
    """Blocks worth trying: families of equal blocks, and single ones, by what they hold at the peak."""
    held: Dict[str, int] = {}
    for living in timeline.at_peak:
        if living.category == "activations" and living.phase == "forward":
            words = living.layer.split(".")
            for depth in range(1, len(words)):
                name = ".".join(words[:depth])
                held[name] = held.get(name, 0) + living.bytes * living.count
    containers = {
        layer.name: layer.kind
        for layer in summary.layers
        if not layer.leaf and layer.name and layer.name in held
    }
    families: Dict[str, List[str]] = {}
    for name, kind in containers.items():
        families.setdefault(kind, []).append(name)
    found: List[Tuple[str, Tuple[str, ...]]] = []
    several = [(kind, names) for kind, names in families.items() if len(names) > 1 and not _nested(names)]
    several.sort(key=lambda item: -sum(held[name] for name in item[1]))
    for kind, names in several[:_FAMILIES]:
        found.append((f"checkpointing each of the {len(names)} {kind} blocks", tuple(names)))
    # One that holds nearly everything is the whole model: checkpointing it makes no sense.
    whole = sum(one.bytes * one.count for one in timeline.at_peak if one.category == "activations")
    single = [name for name in containers if held[name] * 2 < whole]
    singles = sorted(single, key=lambda name: -held[name])[:_SINGLES]
    for name in singles:
        found.append((f"checkpointing {name} ({containers[name]}) alone", (name,)))
    return found


def _nested(names: Sequence[str]) -> bool:
    ordered = sorted(names)
    return any(b.startswith(f"{a}.") for a, b in zip(ordered, ordered[1:]))


def _elements(layer: Layer) -> int:
    """Number of elements in a layer's first output."""
    return prod(layer.outputs[0]) if layer.outputs else 0


def _is_large(trace: Trace, head: str, batch: int, timeline: Timeline) -> bool:
    largest = max((site.bytes_at(batch) for site in trace.sites if site.module == head), default=0)
    return largest * 50 >= timeline.peak_bytes


# -- All about a peak


@dataclass(frozen=True)
class PeakReasons:
    """A peak explained."""

    summary: ModelSummary
    gpu: Gpu
    estimate: Estimate
    timeline: Timeline
    advice: Tuple[Advice, ...]


def peak_reasons(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> PeakReasons:
    """Explain the peak of a job whose summary has a trace."""
    assert summary.trace is not None
    estimate = registry.run("auto", summary, job, gpu)
    line = timeline(summary.trace, job.batch_size, gpu)
    return PeakReasons(summary, gpu, estimate, line, advice(summary, job.batch_size, gpu, line))
