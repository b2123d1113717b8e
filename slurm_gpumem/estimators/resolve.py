"""The job that an estimate is for: one way from a summary and what is stated about it, for every caller."""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple

from slurm_gpumem.estimators.training_job import StatedTraining, refuse_untraced, training_job
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.types import ModelSummary

BATCH_OF_ONE = "the estimate is for a batch of 1, as the summary was made; --batch-size says another"


class ResolvedJob(NamedTuple):
    """A model as it is trained, and how."""

    summary: ModelSummary
    """A trace in single precision is turned into one under autocast where the job is."""
    job: TrainingJob
    notes: Tuple[str, ...] = ()
    """What its owner should know of that."""


def resolve_job(
    summary: ModelSummary,
    stated: StatedTraining,
    *,
    presets: StatedTraining = StatedTraining(),  # noqa: B008 - immutable
    input: Optional[str] = None,
    gpus: Optional[int] = None,
) -> ResolvedJob:
    """What is stated counts, else what was traced, else presets of configuration files, else the defaults.

    `input` is one sample's shape where a summary has none. UsageError for what somebody states and the trace
    was made without.
    """
    if input:
        from slurm_gpumem.estimators.stated_input import with_input

        summary = with_input(summary, input)
    refuse_untraced(summary, stated)
    job = training_job(summary, stated, presets=presets, gpus=gpus)
    if summary.trace is None:
        told = stated.batch_size or presets.batch_size
        return ResolvedJob(summary, job, () if told or summary.batch != 1 else (BATCH_OF_ONE,))
    from slurm_gpumem.estimators.traced.changes import in_precision

    summary, notes = in_precision(summary, job.precision)
    return ResolvedJob(summary, job, notes)
