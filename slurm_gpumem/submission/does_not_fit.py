"""The answer no: the job is too large for every GPU in reach, and what would fit instead."""

from __future__ import annotations

from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.types import Estimate, Gpu
from slurm_gpumem.estimators.whatif import alternatives, largest_batch
from slurm_gpumem.submission.candidate_gpus import CandidateGpus
from slurm_gpumem.submission.needs import NeedOnGpu
from slurm_gpumem.submission.share.request import largest_kind
from slurm_gpumem.submission.submission import Submission, Workload
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.units import format_mib


def does_not_fit(asked: Submission, workload: Workload, candidates: CandidateGpus, largest: NeedOnGpu) -> str:
    """Which GPU is too small, and which batch size or precision would be small enough."""
    kind = largest_kind(candidates.kinds)
    assert kind is not None
    assert kind.memory_mib is not None
    size = format_mib(kind.memory_mib).replace(".0 ", " ")
    peak = format_mib(largest.need.peak_mib)
    lines = [
        f"{'peak ' if largest.estimate else ''}{peak} does not fit the largest GPU of partition "
        f"{candidates.names} ({kind.label}, {size})."
    ]
    if workload.summary and largest.estimate:
        lines.append(_advice(workload.summary, largest.gpu, largest.estimate, kind.memory_mib))
    alone = asked.settings.spelled("exclusive-gpu")
    return "\n".join([*filter(None, lines), f"Nothing was submitted. Use {alone} to try anyway."])


def _advice(summary: ModelSummary, gpu: Gpu, estimate: Estimate, limit_mib: int) -> str:
    again = registry.same_way(estimate, summary, gpu)
    job, found = estimate.job, []
    batch = largest_batch(job, again, limit_mib)
    if batch:
        found.append(f"Batch {batch} would fit.")
    amp = alternatives(estimate, gpu, again).amp
    if amp:
        needs = format_mib(amp.peak_mib)
        found.append(f"AMP (--precision {amp.job.precision}) would need {needs} at batch {job.batch_size}.")
    return " ".join(found)
