"""Why a traced job needs what it needs, and what would lower its peak most.

Each change is applied to the traced steps, which are then replayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.explain import changes
from slurm_gpumem.estimators.explain.timeline import Timeline, timeline
from slurm_gpumem.estimators.traced.replay import replay
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.summaries.trace_types import Trace, scale
from slurm_gpumem.summaries.types import Layer, ModelSummary
from slurm_gpumem.units import MIB

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
