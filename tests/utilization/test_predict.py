"""Predictions: intervals around them, warnings beyond what was measured, and what they cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurm_gpumem import estimate
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.gpus import closest_gpu, find_gpu
from slurm_gpumem.estimators.structural.estimator import rebuild
from slurm_gpumem.estimators.types import TrainingJob, Utilization
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.utilization.features import TextQuality
from slurm_gpumem.utilization.model import packaged
from slurm_gpumem.utilization.predict import predict, with_utilization
from slurm_gpumem.utilization.work import step_work
from tests.support.timing import best_cpu_s, slowness

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def predicted(name: str, **how: object) -> Utilization:
    found = estimate(EXAMPLES / f"{name}.txt", **{"estimator": "structural", **how}).utilization  # type: ignore[arg-type]
    assert found is not None
    return found


def test_every_value_lies_in_its_interval() -> None:
    for name in ("resnet50", "bert", "mobilenetv3", "vit", "gpt2", "small-cnn"):
        found = predicted(name, batch_size=32)
        for target, (low, high) in found.intervals.items():
            assert 0 <= low <= getattr(found, target) <= high, (name, target)
        assert 0 <= found.sm_occupancy <= found.sm_active <= 100


def test_a_larger_batch_keeps_the_gpu_busier() -> None:
    small, large = predicted("resnet50", batch_size=2), predicted("resnet50", batch_size=256)
    assert small.sm_active < 50 < large.sm_active
    assert small.launch_bound
    assert not large.launch_bound
    assert large.step_seconds > 3 * small.step_seconds


def test_a_job_beyond_the_measured_range_says_so_and_is_less_sure() -> None:
    usual = predicted("resnet50", batch_size=64)
    huge = predicted("resnet50", batch_size=1_000_000)
    assert not usual.warnings
    assert any("unlike the measured jobs" in warning for warning in huge.warnings)


def test_a_text_without_shapes_is_called_a_rough_guess_and_has_wider_intervals() -> None:
    full = read_summary(EXAMPLES / "resnet50.txt")
    gpu, job = find_gpu("h200"), TrainingJob(64)
    walk = rebuild(full, job, gpu)
    known = predict(step_work(walk.tape, job), TextQuality(), gpu, packaged())
    rough = predict(step_work(walk.tape, job), TextQuality(shapeless=True), gpu, packaged())
    assert not known.warnings
    assert any("rough guess" in warning for warning in rough.warnings)
    for target in ("sm_active", "step_seconds"):
        (low, high), (least, most) = known.intervals[target], rough.intervals[target]
        assert most - least > 1.3 * (high - low), target


def test_a_submission_reads_only_the_source_that_it_needs() -> None:
    assert set(packaged().sources) == {"summary", "trace"}
    assert set(packaged("trace").sources) == {"trace"}


def test_an_estimator_that_rebuilds_no_step_has_utilization_all_the_same() -> None:
    by_formula = predicted("resnet50", batch_size=64, estimator="horus")
    assert by_formula.sm_active == predicted("resnet50", batch_size=64, estimator="structural").sm_active


@pytest.mark.parametrize("batch", [64, 65, 100])
def test_it_is_of_the_jobs_own_batch_size_where_memory_is_estimated_at_others(batch: int) -> None:
    corrected = predicted("resnet50", batch_size=batch, estimator="corrected")
    assert corrected == predicted("resnet50", batch_size=batch, estimator="structural")


def test_a_gpu_that_nobody_knows_is_predicted_as_the_measured_one() -> None:
    gpu = closest_gpu("our-new-card", 65536)
    summary = read_summary(EXAMPLES / "resnet50.txt")
    plain = registry.run("structural", summary, TrainingJob(64), gpu)
    found = with_utilization(plain, gpu, summary).utilization
    assert found is not None
    assert not found.measured
    assert "its rates are not known" in found.warnings[-1]


@pytest.mark.timing
def test_it_costs_little_beside_the_memory_estimate() -> None:
    summary, gpu = read_summary(EXAMPLES / "bert.txt"), find_gpu("h200")
    plain = registry.run("structural", summary, TrainingJob(32), gpu)
    with_utilization(plain, gpu, summary)
    # Measured at about 2 ms.
    best = best_cpu_s(lambda: with_utilization(replace(plain), gpu, summary), 20)
    assert best < 0.01 * slowness()
