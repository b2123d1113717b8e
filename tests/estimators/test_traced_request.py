"""What is asked for beyond a trace's peak."""

from __future__ import annotations

import pytest

from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.traced.estimator import estimate_trace
from slurm_gpumem.estimators.traced.learned import packaged
from slurm_gpumem.estimators.training_job import StatedTraining, training_job
from slurm_gpumem.summaries.trace_types import Phase, Site, Trace, TracedJob
from slurm_gpumem.summaries.types import ModelSummary

GIB = 1 << 30


@pytest.mark.parametrize("gib", [4, 30, 100])
def test_a_trace_of_a_model_unlike_the_measured_ones_is_not_asked_for_more(gib: int) -> None:
    """Two tensors and a handful of events: no measured model is like it, and nothing about it is unknown."""
    sites = (
        Site((GIB,), "parameter", "", "weights"),
        Site(((gib - 1) * GIB,), "aten::addmm", "0", "activations"),
    )
    phases = (Phase(0, "setup", 0), Phase(1, "forward", 1), Phase(3, "forward", 2))
    trace = Trace(TracedJob(batch=1), "meta", sites, (0, 1, -1, 1, -1), phases)
    job = training_job(ModelSummary(format="gpumem", layers=(), trace=trace), StatedTraining(batch_size=1))
    found = estimate_trace(trace, job, find_gpu("h200"), packaged())
    assert found.request_mib <= 1.25 * found.peak_mib
    assert not any("unlike" in warning for warning in found.warnings)
