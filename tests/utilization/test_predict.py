"""Predictions: intervals around them, warnings beyond what was measured, and what they cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_gpumem import estimate
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.gpus import closest_gpu, find_gpu
from slurm_gpumem.estimators.structural.estimator import rebuild
from slurm_gpumem.estimators.types import TrainingJob, Utilization
from slurm_gpumem.report.explained import detail_lines
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.utilization.model import NAMES, TextQuality, in_words, logit, packaged
from slurm_gpumem.utilization.predict import centers, level_of, predict, with_utilization
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
    assert any("unlike the measured jobs in the " in warning for warning in huge.warnings)


WRITTEN = """\
==========================================================================================
Layer (type:depth-idx)                   Output Shape              Param #
==========================================================================================
QuarkMixer                               [8, 10]                   --
├─Linear: 1-1                            [8, 128, 64]              1,088
├─QuarkBlock: 1-2                        [8, 128, 64]              --
│    └─Linear: 2-1                       [8, 128, 64]              4,160
├─Linear: 1-3                            [8, 10]                   650
==========================================================================================
Total params: 5,898
Trainable params: 5,898
==========================================================================================
"""


def test_of_a_text_with_somebodys_own_classes_utilization_is_unknown_and_says_why() -> None:
    found = estimate(WRITTEN, batch_size=8, gpu="h200")
    assert found.utilization is None
    assert "forward does cannot be seen in a summary" in found.no_utilization


def test_of_a_text_without_shapes_utilization_is_unknown_and_says_what_has_them() -> None:
    found = estimate(
        "ResNet(\n  (conv1): Conv2d(3, 64, kernel_size=(7, 7))\n)\n",
        batch_size=8,
        gpu="h200",
        estimator="corrected",
    )
    assert found.utilization is None
    assert "no shapes" in found.no_utilization


def test_the_answer_for_people_has_one_line_where_utilization_is_unknown() -> None:
    summary = read_summary(WRITTEN)
    found = estimate(WRITTEN, batch_size=8, gpu="h200")
    shown = detail_lines(summary, found, find_gpu("h200"), 1024)
    assert sum("SM activity unknown: what Quark" in line for line in shown) == 1


def test_intervals_are_those_of_the_level_of_activity() -> None:
    model = packaged("summary")
    fitted = model.sources["summary"]
    assert {len(target.bands) for target in fitted.targets.values()} == {3}
    gpu, job = find_gpu("h200"), TrainingJob(64)
    work = step_work(rebuild(read_summary(EXAMPLES / "resnet50.txt"), job).tape, job)
    found = centers(work, TextQuality(), gpu, fitted)
    low, high = fitted.targets["sm_active"].bands[level_of(found.by_target["sm_active"])]
    slow, fast = found.spans["sm_active"]
    least, most = predict(work, TextQuality(), gpu, model).intervals["sm_active"]
    assert logit(least / 100) == pytest.approx(slow + low)
    assert logit(most / 100) == pytest.approx(fast + high)


def test_what_is_not_known_of_the_cpu_widens_jobs_that_wait_for_it() -> None:
    fitted = packaged("summary").sources["summary"]
    assert fitted.host[0] < 1 < fitted.host[1]
    gpu = find_gpu("h200")
    widths = []
    for batch in (2, 256):
        job = TrainingJob(batch)
        work = step_work(rebuild(read_summary(EXAMPLES / "resnet50.txt"), job).tape, job)
        least, most = centers(work, TextQuality(), gpu, fitted).spans["step_seconds"]
        widths.append(most - least)
    assert widths[0] > 0.15 > 0.05 > widths[1]


def test_an_interval_that_says_nothing_is_reported_as_unknown() -> None:
    made = estimate(EXAMPLES / "resnet50.txt", batch_size=32, gpu="h200", estimator="structural")
    assert made.utilization is not None
    assert made.utilization.is_known
    wide = {**made.utilization.intervals, "sm_active": (11.0, 88.0)}
    unsure = made._replace(utilization=made.utilization._replace(intervals=wide))
    summary = read_summary(EXAMPLES / "resnet50.txt")
    shown = detail_lines(summary, unsure, find_gpu("h200"), 1024)
    assert any("SM activity unknown (11 to 88 %)" in line for line in shown)
    assert not any("occupancy" in line for line in shown)


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
    best = best_cpu_s(lambda: with_utilization(plain._replace(), gpu, summary), 20)
    assert best < 0.01 * slowness()


def test_what_is_unusual_is_said_in_words() -> None:
    assert [name for name in NAMES if "_" in in_words(name)] == []
    assert in_words("share_conv_half") == "its time in conv half kernels"
