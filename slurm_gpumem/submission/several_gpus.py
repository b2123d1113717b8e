"""Jobs on several GPUs: whether each GPU holds its part, before they queue."""

from __future__ import annotations

from typing import List, Optional, Tuple

from slurm_gpumem.errors import DoesNotFitError, UsageError
from slurm_gpumem.submission.needs import NeedOnGpu, Needs
from slurm_gpumem.submission.reach import Reach
from slurm_gpumem.submission.request import GpuKind, fits_somewhere, largest_kind
from slurm_gpumem.submission.submission import Submission, Workload
from slurm_gpumem.units import format_mib

_NO_PARTS = "parts of several GPUs cannot be asked for, because Slurm takes a job's shards from one"
_MOST_GPUS = 64
"""No larger number of GPUs is suggested."""


def verdict(asked: Submission, workload: Workload, reach: Reach, needs: Needs) -> Tuple[str, Tuple[str, ...]]:
    """What each GPU of several holds, in words, and warnings; DoesNotFitError where none is large enough.

    Without a stated strategy the job may divide its model in a way that nobody mentioned: it is only warned.
    """
    job, largest, kind = workload.job, needs.largest, largest_kind(reach.kinds)
    if job is None or job.gpus == 1 or largest.estimate is None or kind is None or kind.memory_mib is None:
        return "", ()
    each = format_mib(largest.need.peak_mib)
    under = f" under {job.strategy}" if job.strategy else ""
    if fits_somewhere(reach.kinds, needs.needs):
        fewer = _enough(workload, reach, kind, _below(job.gpus)) if job.strategy else None
        said = f"each needs {each} of {format_mib(kind.memory_mib)}{under}"
        if fewer is not None:
            return f"{said}; {fewer}, by memory", ()
        half = any(kind.units for kind in reach.kinds) and 2 * largest.need.request_mib <= kind.memory_mib
        return f"{said}; {_NO_PARTS}" if half else said, ()
    text = (
        f"each of {job.gpus} GPUs needs {each}{under}, and the largest of partition {reach.names} has "
        f"{format_mib(kind.memory_mib)} ({kind.label})"
    )
    more = _enough(workload, reach, kind, _above(job.gpus)) if job.strategy else None
    if not job.strategy:
        strategy = asked.settings.spelled("strategy")
        return "", (f"{text}, if every one holds the whole model. {strategy} fsdp says that it is divided",)
    if asked.settings.exclusive_gpu:
        return text, ()
    batch = _batch_that_fits(workload, largest, kind)
    advice = "".join(f" {words}." for words in (more, batch) if words)
    alone = asked.settings.spelled("exclusive-gpu")
    raise DoesNotFitError(f"{text}.{advice}\nNothing was submitted. Use {alone} to try anyway.")


def _batch_that_fits(workload: Workload, largest: NeedOnGpu, kind: GpuKind) -> Optional[str]:
    from slurm_gpumem.estimators import registry
    from slurm_gpumem.estimators.whatif import largest_batch

    assert workload.summary is not None
    assert largest.estimate is not None
    again = registry.same_way(largest.estimate, workload.summary, largest.gpu)
    batch = largest_batch(largest.estimate.job, again, kind.memory_mib or 0)
    return f"Batch {batch} would fit" if batch else None


def _below(gpus: int) -> List[int]:
    """Smaller numbers of GPUs that jobs usually ask for, the smallest first."""
    return [number for number in (1, 2, 4, 8, 16, 32) if number < gpus]


def _above(gpus: int) -> List[int]:
    number, found = 1, []
    while number < _MOST_GPUS:
        number *= 2
        if number > gpus:
            found.append(number)
    return found


def _enough(workload: Workload, reach: Reach, kind: GpuKind, numbers: List[int]) -> Optional[str]:
    """The first of these numbers of the largest GPU that surely holds the job, in words; None for none."""
    from dataclasses import replace

    from slurm_gpumem.estimators import registry

    assert workload.summary is not None
    assert workload.job is not None
    gpu = next(gpu for gpu, other in zip(reach.gpus, reach.kinds) if other == kind)
    divided = workload.job.strategy
    from slurm_gpumem.estimators.ranks.strategy import parse_strategy

    for number in numbers:
        if number == 1 and parse_strategy(divided).wider_copy:
            continue  # alone it would keep copies that no estimate for one GPU has
        strategy = divided if number > 1 else ""
        try:
            found = registry.run(
                "auto", workload.summary, replace(workload.job, gpus=number, strategy=strategy), gpu
            )
        except UsageError:
            continue  # more stages than blocks
        if found.sure_mib <= (kind.memory_mib or 0):
            each = format_mib(found.peak_mib)
            if number == 1:
                return f"one {kind.label} would hold it ({each})"
            return f"{number} × {kind.label} would hold it ({each} each)"
    return None
