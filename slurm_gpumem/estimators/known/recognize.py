"""From a summary to the known model that it shows, and to the trace of that model's training."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Optional, Tuple

from slurm_gpumem.estimators.known.store import KnownModel, find, key_of
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.types import ModelSummary

if TYPE_CHECKING:
    from slurm_gpumem.summaries.trace_types import Trace

_SOME = 0.01
"""Less than this part of the parameters makes no difference: tables of positions that nobody trains."""


@lru_cache(maxsize=4)
def recognized(summary: ModelSummary) -> Optional[KnownModel]:
    """The known model that a summary shows; None where it is another one, and for a trace of its own."""
    known = None if summary.trace is not None else find(key_of(summary))
    if known is None or _trains_less(summary, known):
        return None
    if summary.has_shapes or not summary.input_shapes:
        return known
    return known.with_input(summary.input_shapes[0][1:])


def _trains_less(summary: ModelSummary, known: KnownModel) -> bool:
    """Whether the summary names frozen parameters that the stored training has trained."""
    frozen = summary.total_params - summary.trainable_params
    return frozen > _SOME * summary.total_params and summary.trainable_params < (1 - _SOME) * known.trained


def with_stored_trace(summary: ModelSummary, job: TrainingJob) -> ModelSummary:
    """The summary with its model's trace, where one is stored for such a training; otherwise as it is."""
    known = recognized(summary)
    trace = None if known is None else _trace_for(known, job)
    if known is None or trace is None:
        return summary
    from slurm_gpumem.estimators.traced.estimator import lacks_attention  # seldom needed

    if lacks_attention(trace, job.torch):
        return summary
    # What the summary leaves out no longer matters, but for the input's size.
    stated = summary.has_shapes or summary.input_shapes
    warnings = (
        ()
        if stated
        else (f"the summary shows no input size; {known.input} is assumed (--input says another)",)
    )
    return summary._replace(trace=trace, warnings=warnings)


def said_of(known: KnownModel) -> Tuple[str, ...]:
    """What an estimate tells of a recognized model."""
    alike = (f"the summary is also that of {', '.join(known.alike)}",) if known.alike else ()
    return (f"recognized as {known.name} with {known.input}; answered by its trace", *alike)


def _trace_for(known: KnownModel, job: TrainingJob) -> Optional[Trace]:
    """The model's trace for a job; None for a training that changes more than is stored."""
    plain = TrainingJob(1, optimizer=job.optimizer, precision=job.precision)
    # Batch size, GPUs and environment are no part of a trace.
    same = job._replace(batch_size=1, gpus=1, torch="", module_loading=plain.module_loading)
    return _trace(known.key, known.size, plain) if same == plain else None


@lru_cache(maxsize=8)
def _trace(key: bytes, size: int, job: TrainingJob) -> Optional[Trace]:
    known = find(key)
    return None if known is None else known._replace(size=size).trace(job)
