"""What a trace of a batch script gives a submission."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from slurm_gpumem.estimators.types import Estimate, Gpu
from slurm_gpumem.submission.job_trace.batch_script import ScriptRun
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.tracing.script.run import TracedScript


@dataclass(frozen=True)
class Trace:
    """A traced script, its summary read: what `gpusbatch --trace` decides by."""

    run: ScriptRun
    traced: TracedScript
    summary: ModelSummary
    gpu: Gpu
    cached: bool

    @cached_property
    def estimate(self) -> Estimate:
        """What it needs on the GPU that it was traced for; only where several are compared or explained."""
        from slurm_gpumem.estimators import registry
        from slurm_gpumem.estimators.training_job import StatedTraining, training_job

        return registry.run("auto", self.summary, training_job(self.summary, StatedTraining()), self.gpu)
