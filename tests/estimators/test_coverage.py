"""Coverages: other requests on demand, and margins that end at what a GPU has."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.ground_truth import load_ground_truth
from lab.places import HANDWRITTEN
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.largest import batch_limits
from slurm_gpumem.estimators.margin import LEVELS, remedies
from slurm_gpumem.estimators.types import Estimate, TrainingJob
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import ModelSummary

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def resnet() -> ModelSummary:
    return read_summary((EXAMPLES / "resnet50.txt").read_text())


def estimate(coverage: float, batch: int = 64) -> Estimate:
    return registry.run("auto", resnet(), TrainingJob(batch), find_gpu("h200"), coverage)


def test_a_higher_coverage_asks_for_more_and_leaves_the_peak() -> None:
    found = [estimate(coverage) for coverage in (0.5, 0.9, 0.95, 0.98, 0.99, 0.995)]
    asked = [one.request_mib for one in found]
    assert asked == sorted(set(asked))
    assert len({one.peak_mib for one in found}) == 1
    assert [one.margin.coverage for one in found] == [0.5, 0.9, 0.95, 0.98, 0.99, 0.995]


def test_the_default_is_the_coverage_of_its_group() -> None:
    text = registry.run("corrected", resnet(), TrainingJob(64), find_gpu("h200"))
    assert text.margin.coverage == 0.98
    assert text.request_mib == text.margin.requests[LEVELS.index(0.98)]
    known = registry.run("auto", resnet(), TrainingJob(64), find_gpu("h200"))
    assert known.margin.coverage == 0.99
    assert known.request_mib == estimate(0.99).request_mib == known.margin.requests[LEVELS.index(0.99)]


@pytest.mark.parametrize("coverage", [0.0, 0.4, 0.999, 1.0, -1.0])
def test_a_coverage_that_no_measurement_supports_is_refused(coverage: float) -> None:
    with pytest.raises(UsageError, match=r"between 0\.5 and 0\.995"):
        estimate(coverage)


def test_an_estimator_with_one_request_says_that_it_has_no_other() -> None:
    found = registry.run("horus", resnet(), TrainingJob(64), find_gpu("h200"), 0.9)
    assert any("coverage 0.9 is not used" in warning for warning in found.warnings)


def test_an_unmeasured_gpu_widens_every_coverage_by_the_same_memory() -> None:
    there = [registry.run("auto", resnet(), TrainingJob(64), find_gpu("a100"), c) for c in (0.9, 0.98)]
    here = [estimate(0.9), estimate(0.98)]
    wider = there[1].request_mib - there[0].request_mib
    # Not exactly: the peaks of the two GPUs differ a little, and the margin follows them.
    assert wider == pytest.approx(here[1].request_mib - here[0].request_mib, rel=0.1)


def test_the_margin_alone_never_asks_for_more_than_the_gpu_has_and_says_so() -> None:
    truth = load_ground_truth(HANDWRITTEN)
    summary = read_summary(truth.texts["own/w-relpos-lm@256"]["torchinfo_full"].rstrip("\n") + "\n")
    gpu = find_gpu("t4")
    capped = 0
    for batch in (16, 64, 96, 128, 192, 256, 384):
        found = registry.run("auto", summary, TrainingJob(batch), gpu)
        assert found.request_mib <= gpu.usable_mib or found.peak_mib > gpu.usable_mib
        if found.margin.wanted_mib is not None:
            capped += 1
            assert found.request_mib == gpu.usable_mib < found.margin.wanted_mib == found.sure_mib
            assert any("does not surely fit" in warning for warning in found.warnings)
    assert capped


def test_the_largest_batch_is_one_that_surely_fits() -> None:
    """A request that was cut to the GPU's size must not pass for one that fits."""
    gpu = find_gpu("t4")
    (limit,) = batch_limits(resnet(), TrainingJob(32), None, [gpu], None, 1024).limits
    assert limit.batch is not None
    assert limit.batch_at_best is not None
    assert limit.batch < limit.batch_at_best
    assert limit.estimate.sure_mib <= gpu.usable_mib


def test_every_group_names_what_would_make_its_margin_smaller() -> None:
    h200, a100 = find_gpu("h200"), find_gpu("a100")
    plain = registry.run("corrected", resnet(), TrainingJob(64), h200)
    assert "a trace" in remedies(plain, h200)[0]
    assert "one measured run" in remedies(estimate(0.98), h200)[0]
    assert any("calibrate" in one for one in remedies(plain, a100))
    shapeless = read_summary("Sequential(\n  (0): Linear(in_features=10, out_features=10, bias=True)\n)\n")
    found = registry.run("auto", shapeless, TrainingJob(8), h200)
    assert "shapes" in remedies(found, h200)[0]
