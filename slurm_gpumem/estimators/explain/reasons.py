"""Why a traced job needs what it needs: its estimate, its step event by event, and what would lower it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.explain.advice import Advice, advice
from slurm_gpumem.estimators.explain.timeline import Timeline, timeline
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.summaries.types import ModelSummary


@dataclass(frozen=True)
class PeakReasons:
    """A peak explained."""

    summary: ModelSummary
    gpu: Gpu
    estimate: Estimate
    timeline: Timeline
    advice: Tuple[Advice, ...]


def peak_reasons(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> PeakReasons:
    """Explain the peak of a job whose summary has a trace."""
    assert summary.trace is not None
    estimate = registry.run("auto", summary, job, gpu)
    line = timeline(summary.trace, job.batch_size, gpu)
    return PeakReasons(summary, gpu, estimate, line, advice(summary, job.batch_size, gpu, line))
