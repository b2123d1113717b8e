"""How many CPUs a job keeps busy, from readings of its CPU time."""

from __future__ import annotations

from typing import List, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.node.sampler.usage import CpuUse


def used(*cpus: float, every_s: float = 5.0) -> CpuUse:
    """A job that kept as many CPUs busy in one stretch after the other."""
    use, counter = CpuUse(), 3.0
    use.add(counter, 100.0)
    for number, busy in enumerate(cpus, start=1):
        counter += busy * every_s
        use.add(counter, 100.0 + number * every_s)
    return use


def test_a_steady_job_uses_what_it_uses() -> None:
    use = used(*[1.1] * 20)
    assert use.mean() == 1.1
    assert use.high() == pytest.approx(1.1, abs=0.051)


def test_a_short_burst_is_in_the_mean_and_not_in_what_it_needs() -> None:
    use = used(*[1.0] * 39, 16.0)
    assert use.mean() == pytest.approx(1.38, abs=0.01)
    assert use.high() == pytest.approx(1.0, abs=0.051)
    assert used(*[1.0] * 9, 16.0).high() == pytest.approx(16.0, abs=0.051)


def test_time_in_which_it_is_stopped_or_suspended_says_nothing_of_what_it_needs() -> None:
    use = used(*[4.0] * 5, *[0.0] * 500)
    assert use.high() == pytest.approx(4.0, abs=0.051)
    mean = use.mean()
    assert mean is not None
    assert mean < 0.1
    assert used(0.0, 0.0, 0.0).high() == 0.0


@pytest.mark.parametrize("stretches", [0, 1, 2])
def test_of_a_job_of_seconds_nothing_is_said(stretches: int) -> None:
    use = used(*[8.0] * stretches)
    assert (use.mean(), use.high()) == (None, None)


def test_time_that_is_missing_for_a_moment_is_no_burst_when_it_comes_back() -> None:
    """A process that has ended is nobody's until its parent has seen it."""
    use = CpuUse()
    for number, counter in enumerate((1000.0, 1005.0, 7.0, 1015.0, 1020.0, 1025.0)):
        use.add(counter, number * 5.0)
    assert use.high() == pytest.approx(1.0, abs=0.051)


def test_time_that_an_orphan_takes_with_it_is_not_waited_for() -> None:
    use = CpuUse()
    for number, counter in enumerate((1000.0, 1005.0, 7.0, 12.0, 17.0, 22.0, 27.0)):
        use.add(counter, number * 5.0)
    assert use.high() == pytest.approx(1.0, abs=0.051)
    assert use.mean() == 1.0


def test_a_new_sampler_goes_on_from_what_the_last_one_saw() -> None:
    assert CpuUse(at_least=5.0).high() == 5.0
    use = used(*[1.0] * 5)
    use.at_least = 5.0
    assert use.high() == 5.0


_GAP = st.one_of(st.just(0.0), st.floats(1e-9, 30))  # the clock counts nanoseconds


@given(st.lists(st.floats(0, 2000), max_size=50), st.lists(_GAP, min_size=50, max_size=50))
def test_no_readings_make_it_negative(readings: List[float], gaps: List[float]) -> None:
    use, now = CpuUse(), 0.0
    for counter, gap in zip(readings, gaps):
        now += gap
        use.add(counter, now)
    values: List[Optional[float]] = [use.mean(), use.high()]
    assert all(value is None or value >= 0 for value in values)
