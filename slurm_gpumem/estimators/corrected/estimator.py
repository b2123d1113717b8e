"""The estimator `corrected`: the structural estimate, corrected and bounded by what measured runs show."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, exp, log
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from slurm_gpumem.data import data_path
from slurm_gpumem.estimators import width
from slurm_gpumem.estimators.corrected.anchors import anchors, grows
from slurm_gpumem.estimators.corrected.features import KNOWN, NAMES, features
from slurm_gpumem.estimators.corrected.relatives import (
    Near,
    NeighbourRuns,
    Relatives,
    classes_of,
    nearest,
    neighbour_runs,
    packaged,
)
from slurm_gpumem.estimators.corrected.unseen import unseen
from slurm_gpumem.estimators.coverage import request_at
from slurm_gpumem.estimators.structural.estimator import estimate_with
from slurm_gpumem.estimators.structural.kinds import family_of
from slurm_gpumem.estimators.structural.replay import Replay
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.estimators.trees import Correction, load
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.estimators.width import REFERENCE_CONTEXT_MIB, Width
from slurm_gpumem.summaries.types import Layer, ModelSummary
from slurm_gpumem.units import MIB

FILE = "correction.json"
MEASURED_GPU = "h200"
UNUSUAL, WRITTEN, WRITTEN_FLAT, SHAPELESS = "unusual", "written", "written-flat", "shapeless"
"""Groups of texts beside those of `group_of`: see `width_group`."""
_SLACK = 1e-9
_UNSEEN_LAYERS = re.compile(
    r"Mamba(?!Out)|S4|SSM|StateSpace|Hyena|RWKV|Rwkv|Retention|"
    r"(?:GCN|GAT|SAGE|GIN|Graph|Cheb|Edge|Message)\w*(?:Conv|Layer|Passing)|^MessagePassing"
)
"""Layers whose work is mostly done in operations that no summary shows: state-space and graph models."""


def estimate(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    """The process's GPU memory: structural, corrected by the package's model, with its bound."""
    return corrected(summary, job, gpu, _packaged(), packaged(), width.packaged())


@lru_cache(maxsize=1)
def _packaged() -> Correction:
    return load(data_path("models", FILE), KNOWN)


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
    correction: Correction,
    relatives: Relatives,
    widths: Mapping[str, Width],
) -> Estimate:
    """The estimate under a given correction; `gpumem accuracy` gives one that never saw the model."""
    around = anchors(job.batch_size)
    ask = AtBatchSizes(summary, job, gpu, correction, relatives)
    points = [ask.at(batch) for _, batch in around]
    shares = [share for share, _ in around]
    group = width_group(summary, points[0].group)
    below: List[CorrectedPeak] = []
    batch, point = around[0][1], points[0]
    # Workspaces make a small batch need more than a larger one now and then; so may the one below that. Where
    # the job grows with its batch, half of it needs less.
    while batch > 1 and not point.grows:
        batch //= 2
        point = ask.at(batch)
        below.append(point.corrected)
    peak, requests = joined(shares, [point.corrected for point in points], below, widths[group])
    plain = points[-1].plain
    moved = plain.parts["context"] - REFERENCE_CONTEXT_MIB
    center = _between(shares, [point.corrected.center for point in points])
    parts, found = _move(
        {
            name: round(_between(shares, [float(point.plain.parts[name]) for point in points]))
            for name in plain.parts
        },
        round(peak) + moved,
    )
    code = unseen(summary)
    warnings: Tuple[str, ...] = plain.warnings
    if code.message:
        warnings = (*warnings, f"the request is wide: {code.message}" if code.is_much else code.message)
    if code.is_much and counts_nodes(summary, job):
        warnings = (
            *warnings,
            f"{summary.batch} leads every shape and is taken for the text's batch size; where it counts "
            "nodes or points of fewer samples, the estimate is too low",
        )
    if group == UNUSUAL:
        named = strange_layers(summary)
        warnings = (*warnings, f"unlike the measured models ({named}); the request is wider than usual")
    of = f" of models like {ask.like}" if ask.like else ""
    assumed = [*plain.assumptions, f"corrected by {round(center * 100):+d} % as runs{of} on an H200 suggest"]
    if gpu.entry != MEASURED_GPU:
        assumed.append(f"the correction is unmeasured on {gpu.name}")
    floor = round(_between(shares, [float(point.plain.floor_mib) for point in points]))
    asked = tuple(max(found, ceil(request - _SLACK) + moved) for request in requests)
    return replace(
        plain,
        job=job,
        peak_mib=found,
        request_mib=request_at(asked, widths[group].coverage),
        floor_mib=min(floor, found),
        parts=parts,
        estimator="corrected",
        warnings=warnings,
        assumptions=tuple(assumed),
        coverage=widths[group].coverage,
        requests=asked,
        group=group,
        custom_forward=code if code.is_much else None,
        # Between two anchors the rebuilt step is that of another batch size.
        step=plain.step if plain.job == job else None,
    )


class AtBatchSizes:
    """The answers for one job at several batch sizes."""

    def __init__(
        self, summary: ModelSummary, job: TrainingJob, gpu: Gpu, correction: Correction, relatives: Relatives
    ) -> None:
        self._summary, self._job, self._gpu = summary, job, gpu
        self._correction, self._relatives = correction, relatives
        self._near: Optional[Near] = None
        self.like = ""
        """The measured model that is most like this one, by name; "" where none is."""

    @classmethod
    def packaged(cls, summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> AtBatchSizes:
        """By the package's own correction."""
        return cls(summary, job, gpu, _packaged(), packaged())

    def at(self, batch: int) -> _Point:
        """The answer at one batch size."""
        plain, walk, result = _structural(self._summary, replace(self._job, batch_size=batch), self._gpu)
        total = result.stats.peak_reserved / MIB + REFERENCE_CONTEXT_MIB
        values = features(self._summary, walk, result, total)
        group = group_of(values)
        if self._near is None:
            self._near = self._relatives.near(group, classes_of(self._summary))
            self.like = nearest(self._near, values, self._relatives)
        found = correct_peak(total, values, neighbour_runs(self._near, values), self._correction, batch)
        return _Point(plain, found, group, grows(result, total))


@dataclass(frozen=True)
class CorrectedPeak:
    """What a correction makes of a structural estimate: MiB with the reference context."""

    center: float
    """log(peak / structural)."""
    peak: float
    spread: float
    """How far from its peak such a job's need usually is, as a logarithm."""
    batch: int

    def requests(self, wide: Width) -> Tuple[float, ...]:
        """What to ask for at each coverage of LEVELS."""
        unit = wide.unit_mib(self.peak, self.spread, self.batch)
        return tuple(self.peak + step * unit for step in wide.steps)


def correct_peak(
    total: float, values: Sequence[float], neighbours: NeighbourRuns, correction: Correction, batch: int
) -> CorrectedPeak:
    """Correct a structural estimate in MiB by its features and by runs of neighbouring models."""
    known = [*values, *neighbours.values]
    center = correction.center.predict(known)
    spread = exp(correction.spread.predict([*known, abs(center)]))
    peak = total * (1 + neighbours.beyond) * exp(center)
    return CorrectedPeak(center=log(peak / total), peak=peak, spread=spread, batch=batch)


def joined(
    shares: Sequence[float], answers: Sequence[CorrectedPeak], below: Sequence[CorrectedPeak], wide: Width
) -> Tuple[float, Tuple[float, ...]]:
    """Peak and requests of a batch size from the answers at its anchors; none is less than any below."""
    first, last = answers[0], answers[-1]
    peak = max([first.peak, *(answer.peak for answer in below)])
    asked = _highest([first.requests(wide), *(answer.requests(wide) for answer in below)])
    if len(answers) == 1:
        return peak, asked
    share = shares[1]
    high = _highest([asked, last.requests(wide)])
    return peak + max(0.0, last.peak - peak) * share, tuple(
        low + (up - low) * share for low, up in zip(asked, high)
    )


def _highest(rows: Sequence[Tuple[float, ...]]) -> Tuple[float, ...]:
    return tuple(map(max, zip(*rows)))


def width_group(summary: ModelSummary, shown: str) -> str:
    """The group whose width a text has; `shown` is `group_of` its features. The batch size is no part."""
    if shown == SHAPELESS:
        return SHAPELESS
    if unseen(summary).is_much:
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


def group_of(values: Sequence[float]) -> str:
    """How much of the model the text shows; each group has its own bound."""
    value = dict(zip(NAMES, values))
    if value["shapeless"]:
        return SHAPELESS
    if value["guessed"] or value["incomplete"]:
        return "hidden"
    if value["torchsummary"]:
        return "torchsummary"
    return "shown" if value["rows_without_inputs"] else "complete"


def strange_layers(summary: ModelSummary) -> str:
    """The kinds of layers that put a model outside what was measured, in a few words; "" where none does."""
    kinds = sorted({layer.kind for layer in summary.layers if _UNSEEN_LAYERS.search(layer.kind)})
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
