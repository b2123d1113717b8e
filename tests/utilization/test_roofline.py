"""The roofline: what bounds a step, and how GPUs scale it."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_gpumem import estimate
from slurm_gpumem.estimators.gpus import find_gpu, gpu_table
from slurm_gpumem.utilization.roofline import START, Rates, coverage, rates_of, step_times, together
from slurm_gpumem.utilization.work import KINDS, Host, StepWork
from tests.utilization.test_work import work

H200 = find_gpu("h200")


def test_a_large_batch_is_bound_by_the_gpu_and_a_tiny_one_by_launches() -> None:
    large = step_times(work("resnet50", batch_size=256), rates_of(H200), START)
    tiny = step_times(work("resnet50", batch_size=1), rates_of(H200), START)
    assert large.gpu > 2 * large.cpu
    assert tiny.cpu > tiny.gpu
    assert large.busy / large.step > 0.8
    assert tiny.busy / tiny.step < 0.4


def test_a_slower_cpu_idles_the_gpu_of_a_launch_bound_job() -> None:
    small = work("resnet50", batch_size=4)
    fast = step_times(small, rates_of(H200), START)
    slow = step_times(small, rates_of(H200._replace(host_factor=3.0)), START)
    assert slow.busy / slow.step < 0.6 * fast.busy / fast.step


@pytest.mark.parametrize("name", ["t4", "a100", "l4", "b200"])
def test_another_gpu_is_slower_or_faster_as_its_rates_are(name: str) -> None:
    gpu = find_gpu(name)
    here = step_times(work("vit", batch_size=256, precision="amp-bf16"), rates_of(gpu), START)
    there = step_times(work("vit", batch_size=256, precision="amp-bf16"), rates_of(H200), START)
    assert (here.step > there.step) == (gpu.tflops[2] < H200.tflops[2])


def test_every_gpu_of_the_table_has_peak_rates() -> None:
    for gpu in gpu_table(Path("/nonexistent")).values():
        assert len(gpu.tflops) == 3, gpu.name
        assert gpu.tflops[0] <= gpu.tflops[1] <= gpu.tflops[2], gpu.name
        assert gpu.clock_mhz is not None
        assert 1000 < gpu.clock_mhz < 3000, gpu.name


def test_the_last_wave_of_tiles_may_be_nearly_empty() -> None:
    # Blocks are small tiles; four of them make a large one, which is the fastest where it fits.
    assert coverage(4 * 132, 132, whole_waves=True) == 1
    assert coverage(4 * 133, 132, whole_waves=True) < 0.9
    assert coverage(132, 132, whole_waves=True) == pytest.approx(0.85)
    assert coverage(133, 132, whole_waves=False) == 1
    assert coverage(33, 132, whole_waves=False) == 0.25


def test_times_that_overlap_cost_the_longer_one() -> None:
    assert together(1.0, 0.01, 4) == pytest.approx(1.0)
    assert 1.0 < together(1.0, 1.0, 4) < 1.3


def test_an_empty_step_takes_no_time_but_does_not_divide_by_zero() -> None:
    nothing = StepWork({}, Host(0, 0, 0, 0, 0, 0, 0), 0)
    times = step_times(nothing, Rates((1.0,) * len(KINDS), 1.0, 1, 0.0), START)
    assert times.step > 0


def test_an_estimate_for_an_unmeasured_gpu_says_so() -> None:
    text = Path(__file__).parents[2] / "docs" / "examples" / "resnet50.txt"
    here, there = (
        estimate(text, batch_size=64, gpu=name, estimator="structural").utilization
        for name in ("h200", "a100")
    )
    assert here is not None
    assert there is not None
    assert here.measured
    assert not there.measured
    assert any("unmeasured on a100" in warning for warning in there.warnings)
    assert there.step_seconds > here.step_seconds
