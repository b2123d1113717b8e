"""What would change an estimate: other batch sizes and precisions, found by estimating again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from slurm_gpumem.estimators import largest
from slurm_gpumem.estimators.largest import Estimating
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.units import ceil_div

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
    batch = largest_batch(job, again, fewer * shard_mib) if fewer else None
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


def largest_batch(job: TrainingJob, again: Estimating, limit_mib: int) -> Optional[int]:
    """The largest batch whose request stays within `limit_mib`; None when not even one sample does."""
    return largest.largest_batch(largest.BatchCurve(job, again).request_mib, limit_mib, job.batch_size)


def _amp_of(gpu: Gpu) -> str:
    """bf16 where the GPU has it (Ampere and later, and where nothing is known), else fp16."""
    major = gpu.compute_capability.split(".")[0]
    return "amp-fp16" if major.isdigit() and int(major) < 8 else "amp-bf16"


def _if_smaller(other: Optional[Estimate], than: Estimate) -> Optional[Estimate]:
    return other if other is not None and other.peak_mib < than.peak_mib else None
