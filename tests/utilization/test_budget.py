"""Budgets: whatever jobs share a GPU, while their shares fit no one is predicted slower than accepted."""

from __future__ import annotations

from typing import List

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.lab.shared_speeds import speeds
from slurm_gpumem.utilization.budget import asked_share, budget, interpolated, scale, tolerance
from slurm_gpumem.utilization.interference import (
    MODES,
    JobLoad,
    packaged,
    pressure,
    stretch,
)

loads = st.builds(
    lambda active, warps, dram, step: JobLoad(active, active * warps, active * dram, step),
    st.floats(0.01, 0.99),
    st.floats(0.05, 1.0),
    st.floats(0.0, 1.0),
    st.floats(0.0005, 2.0),
)


@given(st.lists(loads, min_size=2, max_size=9), st.floats(1.01, 4.0), st.sampled_from(MODES))
def test_no_set_that_fits_has_a_job_slower_than_accepted(
    jobs: List[JobLoad], limit: float, mode: str
) -> None:
    known, total = packaged().modes[mode], scale(packaged(), limit, mode)
    left, beside = 1.0, []
    for job in jobs:
        share = budget(job, limit, total, known).share
        if share <= left:
            beside.append(job)
            left -= share
    if len(beside) > 1:
        assert min(speeds(beside, known)) >= 1 / limit - 1e-6


@given(loads, st.floats(1.0, 4.0), st.floats(1.0, 4.0))
def test_accepting_more_slowdown_never_asks_for_more(job: JobLoad, one: float, other: float) -> None:
    known = packaged().modes["mps"]
    strict, loose = sorted((one, other))
    assert budget(job, loose, 1.0, known).share <= budget(job, strict, 1.0, known).share + 1e-9


@given(loads, st.floats(0.0, 5.0), st.floats(0.0, 5.0), st.sampled_from(MODES))
def test_more_pressure_is_never_better(job: JobLoad, one: float, other: float, mode: str) -> None:
    known = packaged().modes[mode]
    less, more = sorted((one, other))
    assert stretch(job, more, known) >= stretch(job, less, known) >= 1 - 1e-12


@given(loads, st.floats(1.01, 4.0))
def test_the_tolerance_is_where_the_slowdown_is_reached(job: JobLoad, limit: float) -> None:
    known = packaged().modes["mps"]
    found = tolerance(job, limit, known)
    assert stretch(job, found, known) <= limit + 1e-6
    if found < 60:
        assert stretch(job, found + 1e-3, known) > limit - 1e-6


def test_no_slowdown_at_all_means_a_gpu_to_itself() -> None:
    known = packaged().modes["mps"]
    busy = JobLoad(0.9, 0.3, 0.4, 0.05)
    assert budget(busy, 1.0, 1.0, known).share > 0.9


def test_a_job_that_does_little_presses_little() -> None:
    known = packaged().modes["mps"]
    quiet, busy = JobLoad(0.05, 0.02, 0.02, 0.02), JobLoad(0.95, 0.3, 0.4, 0.02)
    assert pressure(quiet, known) < 0.2 * pressure(busy, known)


@pytest.mark.parametrize(("at", "expected"), [(1.0, 2.0), (1.5, 3.0), (2.0, 4.0), (9.0, 4.0), (0.5, 2.0)])
def test_between_two_points_is_their_line(at: float, expected: float) -> None:
    assert interpolated([(1.0, 2.0), (2.0, 4.0)], at) == expected


def test_any_two_jobs_may_share_where_twice_as_long_is_accepted() -> None:
    assert asked_share(0.9, 2.0) == asked_share(0.9, 3.0) == 0.5
    assert (asked_share(0.9, 1.9), asked_share(0.3, 2.0)) == (0.9, 0.3)
