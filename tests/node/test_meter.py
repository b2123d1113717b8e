from __future__ import annotations

from typing import Any, Optional

import pytest

from slurm_gpumem.formats.live import GpuSample
from slurm_gpumem.node.sampler.gpu_readings import COUNTER_EVERY_S, Meter
from slurm_gpumem.node.sources.base import NoSource, SourceError

ALONE, BOTH = frozenset({1}), frozenset({1, 2})


class Gpu(NoSource):
    """It draws 300 W and says so a little too high."""

    def __init__(self, *, has_counter: bool = True) -> None:
        self.now = 0.0
        self.counted = 5e6
        self.asked = 0
        self.has_counter = has_counter
        self.broken = False

    def sample(self, uuid: str) -> GpuSample:
        return GpuSample(power_w=310.0)

    def energy_j(self, uuid: str) -> Optional[float]:
        self.asked += 1
        if self.broken:
            raise SourceError("nvmlDeviceGetTotalEnergyConsumption: NVML error 999")
        return self.counted + 300.0 * self.now if self.has_counter else None


def given(gpu: Gpu, meter: Meter, until: float, active: frozenset[int], step: float = 1.0) -> float:
    """What the stretches that end up to then were given."""
    total = 0.0
    while gpu.now < until:
        gpu.now += step
        reading = meter.read("GPU-1", active, gpu.now)
        total += (reading.energy_j or 0.0) if reading else 0.0
    return total


@pytest.fixture
def gpu() -> Gpu:
    return Gpu()


@pytest.fixture
def meter(gpu: Any) -> Meter:
    made = Meter(gpu, 5.0)
    made.read("GPU-1", ALONE, gpu.now)
    return made


def test_the_energy_counter_is_asked_once_a_minute(gpu: Gpu, meter: Meter) -> None:
    given(gpu, meter, 10 * COUNTER_EVERY_S, ALONE)
    assert gpu.asked == 11


def test_between_two_counters_power_stands_for_energy_and_is_made_good_then(gpu: Gpu, meter: Meter) -> None:
    assert given(gpu, meter, 55, ALONE) == pytest.approx(310 * 55)
    assert given(gpu, meter, 60, ALONE) == pytest.approx(300 * 60 - 310 * 55)


def test_each_set_of_jobs_gets_exactly_what_was_used_while_it_was_there(gpu: Gpu, meter: Meter) -> None:
    before = given(gpu, meter, 33, ALONE)
    gpu.now += 1
    reading = meter.read("GPU-1", BOTH, gpu.now)
    assert reading is not None
    assert reading.sharers == ALONE
    assert before + (reading.energy_j or 0) == pytest.approx(300 * 34)
    shared = given(gpu, meter, 94, BOTH)
    assert shared == pytest.approx(300 * 60)


def test_jobs_that_come_and_go_every_second_do_not_make_it_dear(gpu: Gpu, meter: Meter) -> None:
    total = 0.0
    for second in range(60):
        total += given(gpu, meter, gpu.now + 1, BOTH if second % 2 == 0 else ALONE)
    assert gpu.asked <= 13
    assert total == pytest.approx(300 * 60, rel=0.05)


def test_without_a_counter_energy_is_power_times_time() -> None:
    gpu = Gpu(has_counter=False)
    meter = Meter(gpu, 5.0)
    meter.read("GPU-1", ALONE, 0.0)
    assert given(gpu, meter, 120, ALONE) == pytest.approx(310 * 120)


def test_a_counter_that_starts_anew_or_does_not_answer_loses_nothing(gpu: Gpu, meter: Meter) -> None:
    gpu.counted = 0.0
    assert given(gpu, meter, 60, ALONE) == pytest.approx(310 * 60)
    gpu.broken = True
    assert given(gpu, meter, 120, ALONE) == pytest.approx(310 * 60)
