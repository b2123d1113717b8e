"""The estimator `corrected`: the structural estimate, moved and bounded by what measured runs show."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log
from typing import AbstractSet, Dict, List, Mapping, Optional, Sequence, Tuple

from slurm_gpumem.estimators.corrected.custom_forward import custom_forward
from slurm_gpumem.estimators.corrected.similar import (
    Conditions,
    Near,
    SimilarModels,
    classes_of,
    nearest,
    neighbour_runs,
)
from slurm_gpumem.estimators.corrected.similar import packaged as packaged_models
from slurm_gpumem.estimators.margin import REFERENCE_CONTEXT_MIB, GroupMargin, request_at
from slurm_gpumem.estimators.margin import packaged as packaged_margins
from slurm_gpumem.estimators.structural.estimator import Replay, estimate_with
from slurm_gpumem.estimators.structural.layers.class_names import family_of
from slurm_gpumem.estimators.structural.stream import ACTIVATIONS
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.estimators.types import Estimate, Gpu, Margin, TrainingJob
from slurm_gpumem.summaries.types import Layer, ModelSummary
from slurm_gpumem.units import MIB

MEASURED_GPU = "h200"
UNUSUAL, WRITTEN, WRITTEN_FLAT, SHAPELESS = "unusual", "written", "written-flat", "shapeless"
"""Groups of summaries beside those of `shown_group`: see `margin_group`."""
_SLACK = 1e-9
_UNMEASURED_LAYERS = re.compile(
    r"Mamba(?!Out)|S4|SSM|StateSpace|Hyena|RWKV|Rwkv|Retention|"
    r"(?:GCN|GAT|SAGE|GIN|Graph|Cheb|Edge|Message)\w*(?:Conv|Layer|Passing)|^MessagePassing"
)
"""Layers whose work is mostly done in operations that no summary shows: state-space and graph models."""


def estimate(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    """The process's GPU memory: structural, corrected by runs of similar models, with its margin."""
    return corrected(summary, job, gpu, packaged_models(), packaged_margins())


@lru_cache(maxsize=32)
def _structural(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Tuple[Estimate, Walk, Replay]:
    """The structural estimate; the batch sizes of a curve share few powers of two, each replayed once."""
    return estimate_with(summary, job, gpu)


@dataclass(frozen=True)
class _Point:
    """The answer at one anchor, in MiB with the reference context."""

    plain: Estimate
    corrected: CorrectedPeak
    group: str
    grows: bool


def corrected(
    summary: ModelSummary,
    job: TrainingJob,
    gpu: Gpu,
    models: SimilarModels,
    margins: Mapping[str, GroupMargin],
) -> Estimate:
    """The estimate by given fits; `make accuracy` gives those that never saw the model."""
    around = anchors(job.batch_size)
    ask = AtBatchSizes(summary, job, gpu, models)
    points = [ask.at(batch) for _, batch in around]
    shares = [share for share, _ in around]
    group = margin_group(summary, points[0].group)
    below: List[CorrectedPeak] = []
    batch, point = around[0][1], points[0]
    # Workspaces make a small batch need more than a larger one now and then; so may the one below that. Where
    # the job grows with its batch, half of it needs less.
    while batch > 1 and not point.grows:
        batch //= 2
        point = ask.at(batch)
        below.append(point.corrected)
    peak, requests = joined(shares, [point.corrected for point in points], below, margins[group])
    plain = points[-1].plain
    moved = plain.parts["context"] - REFERENCE_CONTEXT_MIB
    beyond = _between(shares, [point.corrected.beyond for point in points])
    parts, found = _move(
        {
            name: round(_between(shares, [float(point.plain.parts[name]) for point in points]))
            for name in plain.parts
        },
        round(peak) + moved,
    )
    code = custom_forward(summary)
    warnings: Tuple[str, ...] = plain.warnings
    if code.message:
        warnings = (*warnings, f"the margin is large: {code.message}" if code.is_much else code.message)
    if code.is_much and counts_nodes(summary, job):
        warnings = (
            *warnings,
            f"{summary.batch} leads every shape and is taken for the summary's batch size; where it counts "
            "nodes or points of fewer samples, the estimate is too low",
        )
    if group == UNUSUAL:
        named = strange_layers(summary)
        warnings = (*warnings, f"unlike the measured models ({named}); the margin is larger than usual")
    of = f" of models like {ask.like}" if ask.like else ""
    assumed = [*plain.assumptions, f"corrected by {round(beyond * 100):+d} % as runs{of} on an H200 suggest"]
    if gpu.entry != MEASURED_GPU:
        assumed.append(f"the correction is unmeasured on {gpu.name}")
    floor = round(_between(shares, [float(point.plain.floor_mib) for point in points]))
    asked = tuple(max(found, ceil(request - _SLACK) + moved) for request in requests)
    return plain._replace(
        job=job,
        peak_mib=found,
        request_mib=request_at(asked, margins[group].coverage),
        floor_mib=min(floor, found),
        parts=parts,
        estimator="corrected",
        warnings=warnings,
        assumptions=tuple(assumed),
        margin=Margin(margins[group].coverage, asked, group, custom_forward=code if code.is_much else None),
    )


class AtBatchSizes:
    """The answers for one job at several batch sizes."""

    def __init__(self, summary: ModelSummary, job: TrainingJob, gpu: Gpu, models: SimilarModels) -> None:
        self._summary, self._job, self._gpu, self._models = summary, job, gpu, models
        self._near: Optional[Near] = None
        self.like = ""
        """The measured model that is most similar to this one, by name; "" where none is."""

    @classmethod
    def packaged(cls, summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> AtBatchSizes:
        """By the package's own runs."""
        return cls(summary, job, gpu, packaged_models())

    def at(self, batch: int) -> _Point:
        """The answer at one batch size."""
        plain, walk, result = _structural(self._summary, self._job._replace(batch_size=batch), self._gpu)
        conditions = conditions_of(walk, result)
        group = shown_group(self._summary, walk)
        if self._near is None:
            self._near = self._models.near(group, classes_of(self._summary))
            self.like = nearest(self._near, conditions, self._models)
        total = total_mib(result)
        found = correct_peak(total, conditions, self._near, batch)
        return _Point(plain, found, group, grows(result, total))


def total_mib(result: Replay) -> float:
    """The structural estimate with the reference context."""
    return result.stats.peak_reserved / MIB + REFERENCE_CONTEXT_MIB


def conditions_of(walk: Walk, result: Replay) -> Conditions:
    """By what this job is like a measured run."""
    total = total_mib(result)
    return Conditions(result.at_peak[ACTIVATIONS] / (total * MIB), float(walk.job.amp), log(total))


@dataclass(frozen=True)
class CorrectedPeak:
    """What similar models make of a structural estimate: MiB with the reference context."""

    beyond: float
    """By how much the peak was moved, as a share of the structural estimate."""
    peak: float
    spread: float
    """How far the runs of similar models are apart, as a share of the structural estimate."""
    batch: int

    def requests(self, margin: GroupMargin) -> Tuple[float, ...]:
        """What to ask for at each coverage of LEVELS."""
        return margin.requests(self.peak, self.batch, self.spread)


def correct_peak(
    total: float, job: Conditions, near: Near, batch: int, left_out: AbstractSet[int] = frozenset()
) -> CorrectedPeak:
    """Correct a structural estimate in MiB by runs of similar models; those in `left_out` do not count."""
    runs = neighbour_runs(near, job, left_out)
    return CorrectedPeak(runs.beyond, total * (1 + runs.beyond), runs.spread, batch)


def joined(
    shares: Sequence[float],
    answers: Sequence[CorrectedPeak],
    below: Sequence[CorrectedPeak],
    margin: GroupMargin,
) -> Tuple[float, Tuple[float, ...]]:
    """Peak and requests of a batch size from the answers at its anchors; none is less than any below."""
    first, last = answers[0], answers[-1]
    peak = max([first.peak, *(answer.peak for answer in below)])
    asked = _highest([first.requests(margin), *(answer.requests(margin) for answer in below)])
    if len(answers) == 1:
        return peak, asked
    share = shares[1]
    high = _highest([asked, last.requests(margin)])
    return peak + max(0.0, last.peak - peak) * share, tuple(
        low + (up - low) * share for low, up in zip(asked, high)
    )


def _highest(rows: Sequence[Tuple[float, ...]]) -> Tuple[float, ...]:
    return tuple(map(max, zip(*rows)))


def margin_group(summary: ModelSummary, shown: str) -> str:
    """The group whose margin a summary has; `shown` is its `shown_group`. The batch size is no part."""
    if shown == SHAPELESS:
        return SHAPELESS
    if custom_forward(summary).is_much:
        return WRITTEN if summary.shows.nesting else WRITTEN_FLAT
    return UNUSUAL if strange_layers(summary) else shown


def _between(shares: Sequence[float], values: Sequence[float]) -> float:
    return sum(share * value for share, value in zip(shares, values))


def _move(parts: Mapping[str, int], peak: int) -> Tuple[Dict[str, int], int]:
    """The parts summing to the corrected peak: fragmentation gives or takes first, then activations."""
    moved: Dict[str, int] = dict(parts)
    change = peak - sum(moved.values())
    for name in ("fragmentation", "activations", "workspace"):
        step = max(change, -moved[name])
        moved[name] += step
        change -= step
        if not change:
            break
    return moved, sum(moved.values())


def shown_group(summary: ModelSummary, walk: Walk) -> str:
    """How much of the model the summary shows; each group has its own similar models and its own margin."""
    if not summary.has_shapes:
        return SHAPELESS
    if walk.has_guesses or not summary.complete:
        return "hidden"
    if not summary.shows.nesting:
        return "torchsummary"  # named after the tool that wrote all such summaries of the fit
    without = any(layer.leaf and (not layer.inputs or "inputs" in layer.derived) for layer in summary.layers)
    return "shown" if without else "complete"


def strange_layers(summary: ModelSummary) -> str:
    """The kinds of layers that put a model outside what was measured, in a few words; "" where none does."""
    kinds = sorted({layer.kind for layer in summary.layers if _UNMEASURED_LAYERS.search(layer.kind)})
    reasons = [f"{', '.join(kinds[:3])} layers"] if kinds else []
    if any(_is_3d(layer) for layer in summary.layers):
        reasons.append("3-D convolutions")
    return "; ".join(reasons)


def counts_nodes(summary: ModelSummary, job: TrainingJob) -> bool:
    """Whether what leads the shapes may count nodes: more than the job's batch, over rows of features."""
    shapes = [shape for layer in summary.layers if layer.leaf for shape in layer.outputs]
    return (summary.batch or 0) > job.batch_size and all(len(shape) == 2 for shape in shapes)


def _is_3d(layer: Layer) -> bool:
    if family_of(layer.kind) != "conv" or not layer.leaf:
        return False
    return "3d" in layer.kind or (bool(layer.outputs) and len(layer.outputs[0]) == 5)


# -- Batch sizes at which an estimate is made, and how others lie between them
#
# The caching allocator is chaotic: one sample more may need a little less. A scheduler's question must not
# get such an answer. So estimates are made at powers of two only, each at least as much as the one below, and
# a batch size between two of them gets its share of both.

_GROWING = 0.35
"""Where activations are this share of a job, half its batch cannot need more."""

Anchors = Tuple[Tuple[float, int], ...]


def anchors(batch: int) -> Anchors:
    """(share, batch size) of the powers of two around a batch size; one where it is one itself."""
    below = 1 << (batch.bit_length() - 1)
    if below == batch:
        return ((1.0, batch),)
    above = (batch - below) / below
    return ((1 - above, below), (above, 2 * below))


def grows(result: Replay, total_mib: float) -> bool:
    """Whether so much of a job of this size scales with its batch that half the batch cannot need more."""
    return result.at_peak[ACTIVATIONS] > _GROWING * total_mib * MIB
