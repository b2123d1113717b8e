"""The largest batch that fits, found with few estimates: memory is nearly a line over the batch size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.units import ceil_div

MOST = 1 << 20
"""No larger batch is looked for."""

_POINTS = 13
"""Estimates that a curve is drawn through."""

Estimating = Callable[[TrainingJob], Estimate]
"""An estimator with its summary and GPU already given."""


class BatchCurve:
    """Estimates of one job at any batch size, each made once."""

    def __init__(self, job: TrainingJob, again: Estimating) -> None:
        self._job = job
        self._again = again
        self._known: Dict[int, Estimate] = {}

    def at(self, batch: int) -> Estimate:
        """The estimate at a batch size."""
        if batch not in self._known:
            self._known[batch] = self._again(self._job._replace(batch_size=batch))
        return self._known[batch]

    def request_mib(self, batch: int) -> int:
        """What would be asked for."""
        return self.at(batch).sure_mib

    def peak_mib(self, batch: int) -> int:
        """What it would take."""
        return self.at(batch).peak_mib

    def samples(self, first: int, last: int, count: int) -> List[Tuple[int, Estimate]]:
        """Estimates at about `count` batch sizes, evenly spread, both ends among them."""
        steps = max(1, min(count - 1, last - first))
        batches = sorted({first + round((last - first) * i / steps) for i in range(steps + 1)})
        return [(batch, self.at(batch)) for batch in batches]


def largest_batch(needs: Callable[[int], int], limit_mib: int, start: int) -> Optional[int]:
    """A batch whose need fits while the next one's does not; None when not even one sample fits.

    Need is not quite monotonous in the batch size (the allocator rounds), so a larger batch may fit by
    luck; the one returned does fit. Looks along the line through the two nearest known points.
    """
    fitting, failing = 0, 0
    batch = max(1, start)
    turn = 0
    while failing == 0 or failing - fitting > 1:
        fits = needs(batch) <= limit_mib
        fitting, failing = (batch, failing) if fits else (fitting, batch)
        if fitting >= MOST:
            return fitting
        batch = _next(needs, limit_mib, fitting, failing, fits, turn)
        turn += 1 if fitting and failing else 0
    return fitting or None


def _next(
    needs: Callable[[int], int], limit_mib: int, fitting: int, failing: int, fitted: bool, turn: int
) -> int:
    """The batch to try next: along the line, then close to where that led, and now and then in the middle."""
    if failing == 0:
        return min(fitting * 2, MOST)
    if fitting == 0 or turn % 3 == 2:
        return max(1, (fitting + failing) // 2)
    span = failing - fitting
    if turn % 3 == 1:
        near = max(1, span // 64)
        return fitting + near if fitted else max(fitting + 1, failing - near)
    low, high = needs(fitting), needs(failing)
    guess = fitting + int((limit_mib - low) / max(1, high - low) * span)
    return max(fitting + 1, min(guess, failing - 1))


@dataclass(frozen=True)
class BatchLimit:
    """The answer for one limit: a whole GPU, or some shards of one."""

    gpu: Gpu
    shards: Optional[int]
    """None: the whole GPU."""
    limit_mib: int
    batch: Optional[int]
    """The largest batch whose request stays within the limit; None when not even one sample's does."""
    batch_at_best: Optional[int]
    """The largest whose peak does: it fits if the estimate is right."""
    estimate: Estimate
    """At `batch`, or at one sample."""

    def holds(self, batch: Optional[int]) -> bool:
        """Whether this batch fits if the estimate is right; without one, whether any does."""
        return self.batch_at_best is not None and self.batch_at_best >= (batch or 1)


@dataclass(frozen=True)
class BatchLimits:
    """Up to which batch a model fits GPUs."""

    summary: ModelSummary
    job: TrainingJob
    asked: Optional[int]
    """The batch that was asked about, if any."""
    limits: Tuple[BatchLimit, ...]
    curve: Tuple[Estimate, ...]
    """Over batch sizes, a little past the largest that fits; empty for several GPUs."""


def batch_limits(
    summary: ModelSummary,
    job: TrainingJob,
    asked: Optional[int],
    gpus: Sequence[Gpu],
    shards: Optional[int],
    shard_mib: int,
    coverage: Optional[float] = None,
) -> BatchLimits:
    """The largest batch of each GPU, or of a number of its shards; the search begins at the job's batch."""
    limits = []
    curves = []
    for gpu in gpus:
        curve = BatchCurve(job, _estimating(summary, gpu, coverage))
        # Whole shards, as Slurm hands them out: the remainder is not used.
        whole = max(gpu.usable_mib // shard_mib * shard_mib, min(shard_mib, gpu.usable_mib))
        room = whole if shards is None else min(shards * shard_mib, whole)
        limits.append(_limit(summary, curve, gpu, shards, room, job.batch_size))
        curves.append(curve)
    drawn: Tuple[Estimate, ...] = ()
    if len(gpus) == 1 and (summary.trace is None or summary.trace.scalable):
        last = max(4, round((limits[0].batch_at_best or 1) * 1.25), asked or 1)
        drawn = tuple(estimate for _, estimate in curves[0].samples(1, last, _POINTS))
    return BatchLimits(summary, job, asked, tuple(limits), drawn)


def _estimating(summary: ModelSummary, gpu: Gpu, coverage: Optional[float]) -> Estimating:
    return lambda job: registry.run("auto", summary, job, gpu, coverage)


def _limit(
    summary: ModelSummary, curve: BatchCurve, gpu: Gpu, shards: Optional[int], room: int, start: int
) -> BatchLimit:
    trace = summary.trace
    if trace is not None and not trace.scalable:
        fixed = curve.at(trace.job.batch)
        batch = trace.job.batch if fixed.sure_mib <= room else None
        at_best = trace.job.batch if fixed.peak_mib <= room else None
        return BatchLimit(gpu, shards, room, batch, at_best, fixed)
    at_best = largest_batch(curve.peak_mib, room, start)
    batch = largest_batch(curve.request_mib, room, at_best or start) if at_best else None
    return BatchLimit(gpu, shards, room, batch, at_best, curve.at(batch or 1))


# What would change an estimate: other batch sizes and precisions, found by estimating again.

JUMP = 1.5
"""A peak that grows by this multiple of its batch's growth jumps."""


@dataclass(frozen=True)
class Jump:
    """A peak that grows by more than its batch does, between a slightly smaller batch and this one."""

    batch: int
    grows_mib: int
    part: str
    """The part of the memory that grows most ..."""
    part_mib: int
    """... and by how much."""


@dataclass(frozen=True)
class Alternatives:
    """Jobs near the one that was asked about; None where there is none or it changes nothing."""

    half_batch: Optional[Estimate] = None
    amp: Optional[Estimate] = None
    checkpointing: Optional[Estimate] = None
    fewer_shards: Optional[int] = None
    """A smaller request that is worth having ..."""
    batch_for_fewer: Optional[int] = None
    """... and the largest batch that it holds."""
    jump: Optional[Jump] = None


def alternatives(estimate: Estimate, gpu: Gpu, again: Estimating, shard_mib: int = 1024) -> Alternatives:
    """What half the batch, AMP, checkpointing and a fifth fewer shards would mean for this job."""
    job = estimate.job
    half = again(job._replace(batch_size=job.batch_size // 2)) if job.batch_size > 1 else None
    amp = None
    if job.activation_bytes == 4:
        amp = again(job._replace(precision=_amp_of(gpu)))
    checkpointing = None if job.checkpointing else again(job._replace(checkpointing=True))
    shards = ceil_div(estimate.request_mib, shard_mib)
    fewer = shards * 4 // 5
    batch = largest_that_fits(job, again, fewer * shard_mib) if fewer else None
    return Alternatives(
        half_batch=_if_smaller(half, estimate),
        amp=_if_smaller(amp, estimate),
        checkpointing=_if_smaller(checkpointing, estimate),
        fewer_shards=fewer if batch else None,
        batch_for_fewer=batch,
        jump=jump_before(estimate, again),
    )


def jump_before(estimate: Estimate, again: Estimating) -> Optional[Jump]:
    """What makes the peak jump just below this batch; None where it does not, as never from a summary."""
    batch = estimate.job.batch_size
    below = batch * 7 // 8
    if not estimate.estimator.startswith("trace") or not 0 < below < batch:
        return None
    other = again(estimate.job._replace(batch_size=below))
    grows = estimate.peak_mib - other.peak_mib
    # All of it in proportion to the batch would be this much; the allocator rounds to 20 MiB and more.
    if grows <= JUMP * estimate.peak_mib * (batch - below) / batch:
        return None
    part = max(estimate.parts, key=lambda name: estimate.parts[name] - other.parts.get(name, 0))
    return Jump(below, grows, part, estimate.parts[part] - other.parts.get(part, 0))


def largest_that_fits(job: TrainingJob, again: Estimating, limit_mib: int) -> Optional[int]:
    """The largest batch whose request stays within `limit_mib`; None when not even one sample does."""
    return largest_batch(BatchCurve(job, again).request_mib, limit_mib, job.batch_size)


def _amp_of(gpu: Gpu) -> str:
    """bf16 where the GPU has it (Ampere and later, and where nothing is known), else fp16."""
    major = gpu.compute_capability.split(".")[0]
    return "amp-fp16" if major.isdigit() and int(major) < 8 else "amp-bf16"


def _if_smaller(other: Optional[Estimate], than: Estimate) -> Optional[Estimate]:
    return other if other is not None and other.peak_mib < than.peak_mib else None
