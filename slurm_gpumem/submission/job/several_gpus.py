"""Jobs on several GPUs: whether each GPU holds the model, before they queue."""

from __future__ import annotations

from typing import Optional, Tuple

from slurm_gpumem.errors import DoesNotFitError
from slurm_gpumem.submission.candidate_gpus import CandidateGpus
from slurm_gpumem.submission.needs import NeedOnGpu, Needs
from slurm_gpumem.submission.share.request import GpuKind, fits_somewhere, largest_kind
from slurm_gpumem.submission.submission import Submission, Workload
from slurm_gpumem.units import format_mib

_NO_PARTS = "parts of several GPUs cannot be asked for, because Slurm takes a job's shards on a node from one"


def verdict(
    asked: Submission, workload: Workload, candidates: CandidateGpus, needs: Needs
) -> Tuple[str, Tuple[str, ...]]:
    """What each GPU of several holds, in words, and warnings; DoesNotFitError where none is large enough.

    Where neither its owner nor a trace of its ranks says that the job trains data parallel, it may shard its
    model in a way that nobody mentioned: it is only warned.
    """
    job, largest, kind = workload.job, needs.largest, largest_kind(candidates.kinds)
    if job is None or job.gpus == 1 or largest.estimate is None or kind is None or kind.memory_mib is None:
        return "", ()
    each = format_mib(largest.need.peak_mib)
    if fits_somewhere(candidates.kinds, needs.needs):
        said = f"each needs {each} of {format_mib(kind.memory_mib)}"
        half = (
            any(kind.units for kind in candidates.kinds) and 2 * largest.need.request_mib <= kind.memory_mib
        )
        return f"{said}; {_NO_PARTS}" if half else said, ()
    text = (
        f"each of {job.gpus} GPUs needs {each}, and the largest of partition {candidates.names} has "
        f"{format_mib(kind.memory_mib)} ({kind.label})"
    )
    trace = workload.summary.trace if workload.summary else None
    strategy = asked.settings.spelled("strategy")
    if not asked.settings.text("strategy") and (trace is None or trace.job.ranks == 1):
        return "", (f"{text}, if every one holds the whole model. {strategy} fsdp says that it is sharded",)
    if asked.settings.exclusive_gpu:
        return text, ()
    batch = _batch_that_fits(workload, largest, kind)
    alone = asked.settings.spelled("exclusive-gpu")
    raise DoesNotFitError(
        f"{text}.{f' {batch}.' if batch else ''}\nNothing was submitted. Use {alone} to try anyway."
    )


def _batch_that_fits(workload: Workload, largest: NeedOnGpu, kind: GpuKind) -> Optional[str]:
    from slurm_gpumem.estimators import registry
    from slurm_gpumem.estimators.largest import largest_that_fits

    assert workload.summary is not None
    assert largest.estimate is not None
    again = registry.same_way(largest.estimate, workload.summary, largest.gpu)
    batch = largest_that_fits(largest.estimate.job, again, kind.memory_mib or 0)
    return f"Batch {batch} would fit" if batch else None
