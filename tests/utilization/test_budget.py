"""Budgets: whatever jobs share a GPU, while their shares fit no one is predicted slower than accepted."""

from __future__ import annotations

from typing import List, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.shared_speeds import predicted_speeds, speeds
from slurm_gpumem.estimators.types import Utilization
from slurm_gpumem.utilization.budget import (
    activity_budget,
    budget,
    interpolated,
    share_for,
    tolerance,
    worst_slowdown,
)
from slurm_gpumem.utilization.interference import (
    EQUAL,
    MODES,
    PER_USER,
    SHARED,
    TIMESLICE,
    WAYS,
    JobLoad,
    load_of,
    packaged,
    pressure,
    stretch,
    usual_utilization,
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
    known, total = packaged().modes[mode], interpolated(packaged().scales[mode], limit)
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


def accepted(jobs: List[JobLoad], limits: List[float], site: float, way: str) -> List[int]:
    """Those that Slurm puts on one GPU."""
    left, found = 1.0, []
    for number, (job, limit) in enumerate(zip(jobs, limits)):
        share = share_for(job, limit, site, way).share
        if share <= left:
            found.append(number)
            left -= share
    return found


def worst(kinds: List[JobLoad], order: List[int], users: int, limit: float, way: str) -> float:
    """The slowest job of a GPU on which Slurm puts as many of these as fit, of that number of users."""
    jobs = [kinds[number % len(kinds)] for number in order]
    beside = accepted(jobs, [limit] * len(jobs), limit, way)
    owners = [str(place * 7 % users) for place, _ in enumerate(beside)]
    return 1 / min(predicted_speeds(way, [jobs[number] for number in beside], owners), default=1.0)


mixes = st.tuples(
    st.lists(loads, min_size=1, max_size=4), st.lists(st.integers(0, 3), min_size=2, max_size=14)
)


@given(mixes, st.integers(1, 6), st.floats(1.02, 6.0), st.sampled_from(WAYS))
def test_every_limit_holds_whoever_meets(
    mix: Tuple[List[JobLoad], List[int]], users: int, limit: float, way: str
) -> None:
    assert worst(*mix, users, limit, way) <= limit * (1 + 1e-6)


def test_six_jobs_of_30_percent_of_several_users_are_not_put_on_one_gpu() -> None:
    """By the coefficients of one formula for all they were: predicted 4 times as long at a limit of 2."""
    jobs = [JobLoad(0.3, 0.1, 0.1, 0.03)] * 6
    users = list("abcdef")
    assert 1 / min(predicted_speeds(PER_USER, jobs, users)) > 3.9
    assert len(accepted(jobs, [2.0] * 6, 2.0, PER_USER)) <= 2
    assert len(accepted(jobs, [2.0] * 6, 2.0, SHARED)) > 3


def test_four_light_jobs_of_several_users_share_and_two_heavy_ones_do_not() -> None:
    light, heavy = JobLoad(0.17, 0.05, 0.07, 0.003), JobLoad(0.9, 0.27, 0.36, 0.04)
    assert len(accepted([light] * 9, [3.5] * 9, 3.5, PER_USER)) == 4
    assert accepted([heavy, heavy, light], [3.5] * 3, 3.5, PER_USER) == [0, 2]


@given(st.lists(loads, min_size=2, max_size=8), st.floats(1.02, 1.9), st.floats(1.02, 1.9))
def test_a_job_that_accepts_less_than_the_site_gets_it_in_turns(
    jobs: List[JobLoad], own: float, site: float
) -> None:
    limits = [own, *[site] * (len(jobs) - 1)]
    beside = accepted(jobs, limits, site, TIMESLICE)
    found = predicted_speeds(TIMESLICE, [jobs[number] for number in beside], [str(n) for n in beside])
    for number, speed in zip(beside, found):
        assert 1 / speed <= max(limits[number], own if number == 0 else site) * (1 + 1e-6)


@given(
    st.lists(loads, min_size=2, max_size=8), st.floats(1.02, 4.0), st.sampled_from(WAYS), st.integers(1, 8)
)
def test_what_is_said_at_submission_bounds_what_is_predicted_with_the_neighbours(
    jobs: List[JobLoad], limit: float, way: str, users: int
) -> None:
    beside = accepted(jobs, [limit] * len(jobs), limit, way)
    alike = [jobs[number] for number in beside]
    found = predicted_speeds(way, alike, [str(number % users) for number in beside])
    for job, speed in zip(alike, found):
        used = Utilization(
            100 * job.active, 100 * job.occupancy, 100 * job.dram, job.step, {}, 0.8, False, "trace", True
        )
        said = worst_slowdown(used, share_for(job, limit, limit, way).share, limit, way)
        assert 1 / speed <= said * (1 + 1e-6)


def test_jobs_whose_activity_is_assumed_are_told_what_they_lose_if_all_are_busy() -> None:
    assumed, busy = usual_utilization(0.5, "assumed"), load_of(usual_utilization(0.99, "trace"))
    share = activity_budget(assumed, 3.5, 3.5, SHARED).share
    full = [busy] * int(1 / share)
    # Nobody knows that they are busy, and they run with the priority of others.
    slowest = 1 / min(predicted_speeds(EQUAL, full, ["a"] * len(full)))
    told = worst_slowdown(assumed, share, 3.5, SHARED)
    known = worst_slowdown(assumed._replace(source="remembered"), share, 3.5, SHARED)
    assert known < slowest <= told < 1.4 * slowest


@pytest.mark.parametrize("way", WAYS)
def test_a_job_whose_activity_is_not_known_gets_the_share_for_any_that_it_may_have(way: str) -> None:
    def shares(low: float, high: float) -> List[float]:
        ends = {"sm_active": (low, high)}
        kinds = [(40.0, ends), (low, {}), (high, {})]
        return [
            activity_budget(
                Utilization(active, 10.0, 10.0, 0.03, given, 0.8, False, "trace", True), 1.3, 1.3, way
            ).share
            for active, given in kinds
        ]

    unsure, least, most = shares(10.0, 90.0)
    assert unsure == pytest.approx(max(least, most))
    sure, _, most = shares(30.0, 50.0)
    assert sure <= most
