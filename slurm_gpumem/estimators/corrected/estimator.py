"""The estimator `corrected`: the structural estimate, corrected and bounded by what measured runs show."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, exp, inf, log
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from slurm_gpumem.data import data_path
from slurm_gpumem.estimators.corrected.anchors import anchors, climb, grows
from slurm_gpumem.estimators.corrected.choice import RequestPolicy, request_for
from slurm_gpumem.estimators.corrected.features import NAMES, features
from slurm_gpumem.estimators.corrected.relatives import (
    Near,
    NeighbourRuns,
    Relatives,
    classes_of,
    nearest,
    neighbour_runs,
    packaged,
)
from slurm_gpumem.estimators.corrected.trees import Correction, load
from slurm_gpumem.estimators.corrected.unseen import unseen, written_policy
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.structural.estimator import estimate_with
from slurm_gpumem.estimators.structural.replay import Replay
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.units import MIB

FILE = "correction.json"
MEASURED_GPU = "h200"
REFERENCE_CONTEXT_MIB = 764
"""Context of the measured GPU. Ratios are of whole processes there, so that an error of a few MiB in a tiny
job's tensors does not look large; on another GPU the same tensors are corrected by the same MiB."""
OUTSIDE_COVERAGE = 0.95
"""What the bound holds for at best when the job is unlike the measured ones."""
MOST, MOST_UNUSUAL = 2.5, 5.0
"""The most that is asked for, as a multiple of the peak: for a job like the measured ones, and for others.

More would hold for hardly any further job. Without shapes the peak itself is a guess: no limit there."""
_SLACK = 1e-9
_UNSEEN_LAYERS = re.compile(
    r"Mamba|S4|SSM|StateSpace|Hyena|RWKV|Rwkv|Retention|"
    r"(?:GCN|GAT|SAGE|GIN|Graph|Cheb|Edge|Message)\w*(?:Conv|Layer|Passing)|^MessagePassing"
)
"""Layers whose work is mostly done in operations that no summary shows: state-space and graph models."""


def estimate(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    """The process's GPU memory: structural, corrected by the package's model, with its bound."""
    return corrected(summary, job, gpu, _packaged(), packaged(), written_policy())


@lru_cache(maxsize=1)
def _packaged() -> Correction:
    return load(data_path("models", FILE))


@lru_cache(maxsize=32)
def _structural(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Tuple[Estimate, Walk, Replay]:
    """The structural estimate; the batch sizes of a curve share few powers of two, each replayed once."""
    return estimate_with(summary, job, gpu)


@dataclass(frozen=True)
class _Point:
    """The answer at one anchor, in MiB with the reference context."""

    plain: Estimate
    corrected: CorrectedPeak
    unusual: str
    grows: bool


def corrected(
    summary: ModelSummary,
    job: TrainingJob,
    gpu: Gpu,
    correction: Correction,
    relatives: Relatives,
    written: RequestPolicy,
) -> Estimate:
    """The estimate under a given correction; `gpumem accuracy` gives one that never saw the model."""
    around = anchors(job.batch_size)
    code = unseen(summary)
    ask = AtBatchSizes(summary, job, gpu, correction, relatives, written if code.is_much else None)
    points = [ask.at(batch) for _, batch in around]
    shares = [share for share, _ in around]
    below: List[CorrectedPeak] = []
    batch, point = around[0][1], points[0]
    # Workspaces make a small batch need more than a larger one now and then; so may the one below that. Where
    # the job grows with its batch its peak does not fall, but half of it may be less sure and ask for more.
    while batch > 1 and not (point.grows and below):
        batch //= 2
        point = ask.at(batch)
        below.append(point.corrected)
    peak, request = joined(shares, [point.corrected for point in points], below)
    plain = points[-1].plain
    moved = plain.parts["context"] - REFERENCE_CONTEXT_MIB
    center = _between(shares, [point.corrected.center for point in points])
    unusual = next((point.unusual for point in points if point.unusual), "")
    parts, found = _move(
        {
            name: round(_between(shares, [float(point.plain.parts[name]) for point in points]))
            for name in plain.parts
        },
        round(peak) + moved,
    )
    warnings: Tuple[str, ...] = plain.warnings
    if code.message:
        warnings = (*warnings, code.message)
    if unusual and not (code.is_much and summary.has_shapes):
        warnings = (*warnings, f"unlike the measured models ({unusual}); the request is wider than usual")
    of = f" of models like {ask.like}" if ask.like else ""
    assumed = [*plain.assumptions, f"corrected by {center * 100:+.0f} % as runs{of} on an H200 suggest"]
    if gpu.entry != MEASURED_GPU:
        assumed.append(f"the correction is unmeasured on {gpu.name}")
    floor = round(_between(shares, [float(point.plain.floor_mib) for point in points]))
    asked = ceil(request - _SLACK) + moved
    if code.is_much and summary.has_shapes and asked > gpu.usable_mib >= found:
        # Doubt alone never asks for more than there is.
        asked = gpu.usable_mib
        warnings = (*warnings, f"may need more than a whole {gpu.name}: trace it, or try a smaller batch")
    return replace(
        plain,
        job=job,
        peak_mib=found,
        request_mib=max(found, asked),
        floor_mib=min(floor, found),
        parts=parts,
        estimator="corrected",
        warnings=warnings,
        assumptions=tuple(assumed),
        coverage=min(point.corrected.coverage for point in points),
        unseen=code if code.is_much else None,
        # Between two anchors the rebuilt step is that of another batch size.
        step=plain.step if plain.job == job else None,
    )


class AtBatchSizes:
    """The answers for one job at several batch sizes."""

    def __init__(
        self,
        summary: ModelSummary,
        job: TrainingJob,
        gpu: Gpu,
        correction: Correction,
        relatives: Relatives,
        written: Optional[RequestPolicy],
    ) -> None:
        self._summary, self._job, self._gpu = summary, job, gpu
        self._correction, self._relatives, self._written = correction, relatives, written
        self._near: Optional[Near] = None
        self.like = ""
        """The measured model that is most like this one, by name; "" where none is."""

    @classmethod
    def packaged(cls, summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> AtBatchSizes:
        """By the package's own correction, as if all code could be seen."""
        return cls(summary, job, gpu, _packaged(), packaged(), None)

    def at(self, batch: int) -> _Point:
        """The answer at one batch size."""
        summary, correction = self._summary, self._correction
        plain, walk, result = _structural(summary, replace(self._job, batch_size=batch), self._gpu)
        total = result.stats.peak_reserved / MIB + REFERENCE_CONTEXT_MIB
        values = features(summary, walk, result, total)
        if self._near is None:
            self._near = self._relatives.near(group_of(values), classes_of(summary))
            self.like = nearest(self._near, values, self._relatives)
        unusual = outside(values, summary, correction.ranges)
        # Shards are counted as on the measured GPU: a request moves with another one's context, and only so.
        measured = find_gpu(MEASURED_GPU).context_for(conv=walk.uses_conv, matmul=walk.uses_matmul)
        moved = measured - REFERENCE_CONTEXT_MIB
        neighbours = neighbour_runs(self._near, values)
        found = correct_peak(
            total, values, neighbours, moved, correction, unusual=bool(unusual), written=self._written
        )
        return _Point(plain, found, unusual, grows(result, total))


@dataclass(frozen=True)
class CorrectedPeak:
    """What a correction makes of a structural estimate: MiB with the reference context."""

    center: float
    """log(peak / structural)."""
    peak: float
    spread: float
    moved: float
    """The job's own context on the measured GPU less the reference's."""
    policy: RequestPolicy
    coverage: float
    usual_spread: float
    """The spread that it would have inside the range of the measurements."""

    most: float
    """How many times its peak the request may be."""

    @property
    def request(self) -> float:
        """What to ask for; a job unlike the measured ones gets a wider margin than one like them."""
        found = request_for(self.peak, self.moved, self.spread, self.policy)
        if self.spread != self.usual_spread:
            margin = request_for(self.peak, self.moved, self.usual_spread, self.policy) - self.peak
            found = max(found, self.peak + margin * self.spread / self.usual_spread)
        return min(found, self.most * self.peak)


def correct_peak(
    total: float,
    values: Sequence[float],
    neighbours: NeighbourRuns,
    moved: float,
    correction: Correction,
    *,
    unusual: bool,
    written: Optional[RequestPolicy] = None,
) -> CorrectedPeak:
    """Correct a structural estimate in MiB by its features and by runs of neighbouring models.

    `written` decides the request instead where much hangs on code that no text shows.
    """
    known = [*values, *neighbours.values]
    center = correction.center.predict(known)
    policy = correction.policies[group_of(values)]
    if written is not None and group_of(values) != "shapeless":
        policy, unusual = written, False
    spread = exp(correction.spread.predict([*known, abs(center)]))
    peak = total * (1 + neighbours.beyond) * exp(center)
    return CorrectedPeak(
        center=log(peak / total),
        peak=peak,
        spread=spread * policy.wider if unusual else spread,
        moved=moved,
        policy=policy,
        coverage=min(policy.coverage, OUTSIDE_COVERAGE) if unusual else policy.coverage,
        usual_spread=spread,
        most=inf if policy is written else _most(values, unusual=unusual),
    )


def _most(values: Sequence[float], *, unusual: bool) -> float:
    if group_of(values) == "shapeless":
        return inf
    return MOST_UNUSUAL if unusual else MOST


def joined(
    shares: Sequence[float], answers: Sequence[CorrectedPeak], below: Sequence[CorrectedPeak] = ()
) -> Tuple[float, float]:
    """Peak and request of a batch size from the answers at its anchors; neither is less than any below."""
    first, last = answers[0], answers[-1]
    low = max(first.peak, *(answer.peak for answer in below), 0.0)
    low_request = max(first.request, *(answer.request for answer in below), 0.0)
    if len(answers) == 1:
        return low, low_request
    high, high_request = max(low, last.peak), max(low_request, last.request)

    def decide(share: float) -> float:
        spread = exp(log(first.spread) * (1 - share) + log(last.spread) * share)
        peak = low + (high - low) * share
        return min(request_for(peak, last.moved, spread, last.policy), last.most * peak)

    return low + (high - low) * shares[1], climb(low_request, high_request, shares[1], decide)


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
        return "shapeless"
    if value["guessed"] or value["incomplete"]:
        return "hidden"
    if value["torchsummary"]:
        return "torchsummary"
    return "shown" if value["rows_without_inputs"] else "complete"


def outside(
    values: Sequence[float], summary: Optional[ModelSummary], ranges: Sequence[Tuple[float, float]]
) -> str:
    """Why the job lies outside what was measured, in a few words; "" when it does not."""
    reasons: List[str] = []
    if summary is not None:
        kinds = sorted({layer.kind for layer in summary.layers if _UNSEEN_LAYERS.search(layer.kind)})
        if kinds:
            reasons.append(f"{', '.join(kinds[:3])} layers")
    by_name = dict(zip(NAMES, values))
    if by_name["conv_3d"] > 0:
        reasons.append("3-D convolutions")
    beyond = [
        name.replace("_", " ")
        for name, value, (low, high) in zip(NAMES, values, ranges)
        if not low - _SLACK <= value <= high + _SLACK
    ]
    if beyond:
        reasons.append(f"beyond the usual: {', '.join(beyond[:3])}")
    return "; ".join(reasons)
