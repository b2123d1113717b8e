"""What is asked for beyond a trace's peak."""

from __future__ import annotations

from math import ceil

import pytest

from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.largest import jump_before
from slurm_gpumem.estimators.margin import unfinished_factor
from slurm_gpumem.estimators.traced.estimator import VARIED_FACTOR, estimate_trace
from slurm_gpumem.estimators.training_job import StatedTraining, training_job
from slurm_gpumem.estimators.types import Estimate, TrainingJob
from slurm_gpumem.report.explained import jump_line
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
    found = estimate_trace(trace, job, find_gpu("h200"))
    assert found.request_mib <= 1.25 * found.peak_mib
    assert not any("unlike" in warning for warning in found.warnings)


def test_the_margin_of_a_trace_follows_its_peak_and_no_rule_of_ours() -> None:
    """A traced U-Net asked for 19, 25, 19 and 25 shards at batch 24, 32, 48 and 64."""
    sites = (
        Site((GIB,), "parameter", "", "weights"),
        Site((0, GIB // 8), "aten::addmm", "0", "activations"),
    )
    phases = (Phase(0, "setup", 0), Phase(1, "forward", 1), Phase(3, "forward", 2))
    trace = Trace(TracedJob(batch=32), "meta", sites, (0, 1, -1, 1, -1), phases)
    summary = ModelSummary(format="gpumem", layers=(), trace=trace)
    found = [
        estimate_trace(trace, training_job(summary, StatedTraining(batch_size=batch)), gpu)
        for gpu in (find_gpu("h200"),)
        for batch in range(8, 129, 4)
    ]
    peaks = [one.peak_mib for one in found]
    margins = [one.request_mib - one.peak_mib for one in found]
    assert peaks == sorted(peaks)
    assert margins == sorted(margins)
    shares = [margin / peak for margin, peak in zip(margins, peaks)]
    assert max(shares) < 0.15
    # What grows with the batch is less certain than the weights, so the share may rise a little.
    assert all(later <= 1.05 * before for before, later in zip(shares, shares[1:]))


def test_explain_names_the_part_that_makes_a_peak_jump() -> None:
    def at(job: TrainingJob) -> Estimate:
        large = job.batch_size >= 32
        parts = {"activations": 100 * job.batch_size, "workspace": 3000 if large else 10, "context": 700}
        peak = sum(parts.values())
        return Estimate(peak, peak, peak, parts, "trace", "h200", job)

    jump = jump_before(at(TrainingJob(32)), at)
    assert jump is not None
    assert (jump.batch, jump.part, jump.part_mib) == (28, "workspace", 2990)
    assert jump_before(at(TrainingJob(64)), at) is None
    assert "another algorithm" in jump_line(jump, at(TrainingJob(32)))


def test_the_request_of_an_unfinished_trace_is_wider_and_its_peak_the_same() -> None:
    sites = (Site((GIB,), "parameter", "", "weights"), Site((GIB,), "aten::addmm", "0", "activations"))
    phases = (Phase(0, "setup", 0), Phase(1, "forward", 1), Phase(3, "forward", 2))
    trace = Trace(TracedJob(batch=1), "meta", sites, (0, 1, -1, 1, -1), phases)
    whole = estimate_trace(trace, TrainingJob(1), find_gpu("h200"))
    cut = estimate_trace(trace._replace(unfinished="2 of 30 epochs"), TrainingJob(1), find_gpu("h200"))
    context = whole.parts["context"]
    assert cut.peak_mib == whole.peak_mib
    assert cut.request_mib - context == ceil((whole.request_mib - context) * unfinished_factor())
    assert 1 < unfinished_factor() < 4


def test_the_request_of_batches_of_many_shapes_is_wider_unless_segments_expand() -> None:
    sites = (Site((GIB,), "parameter", "", "weights"), Site((GIB,), "aten::addmm", "0", "activations"))
    phases = (Phase(0, "setup", 0), Phase(1, "forward", 1), Phase(3, "forward", 2))
    trace = Trace(TracedJob(batch=1), "meta", sites, (0, 1, -1, 1, -1), phases)
    whole, varied = (
        estimate_trace(trace._replace(varied=many), TrainingJob(1), find_gpu("h200"))
        for many in (False, True)
    )
    context = whole.parts["context"]
    assert varied.request_mib - context == ceil((whole.request_mib - context) * VARIED_FACTOR)
    expands = TrainingJob(1, alloc_conf="expandable_segments:True")
    plain, same = (
        estimate_trace(trace._replace(varied=many), expands, find_gpu("h200")) for many in (False, True)
    )
    assert same.request_mib == plain.request_mib
