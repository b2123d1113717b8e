"""Speeds of sets: side by side under one server, in turns between servers, and what was measured of both."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.fit.priority import LOW, ROWS, error, measured
from lab.score.sets import figures, judge_sets, load_left_out
from lab.shared_speeds import load_from, predicted_speeds
from lab.utilization_runs import load_sets, way_of
from slurm_gpumem.utilization.interference import (
    EQUAL,
    PER_USER,
    SHARED,
    SIDE,
    TIMESLICE,
    WAYS,
    JobLoad,
    packaged,
)

HEAVY = JobLoad(0.92, 0.35, 0.4, 0.08)
LIGHT = JobLoad(0.25, 0.1, 0.1, 0.02)


@pytest.mark.parametrize("way", WAYS)
def test_a_job_alone_keeps_its_speed(way: str) -> None:
    assert predicted_speeds(way, [HEAVY], ["a"]) == [1.0]


def test_one_users_jobs_overlap_under_its_own_server_as_under_one_for_all() -> None:
    jobs = [HEAVY, HEAVY, LIGHT]
    assert predicted_speeds(PER_USER, jobs, ["a"] * 3) == predicted_speeds(EQUAL, jobs, ["a", "b", "a"])


def test_priorities_speed_up_a_light_job_beside_busy_ones_and_cost_these() -> None:
    jobs, users = [HEAVY, HEAVY, LIGHT], ["a", "b", "c"]
    *busy, light = predicted_speeds(SHARED, jobs, users)
    *before, slowed = predicted_speeds(EQUAL, jobs, users)
    assert light > slowed
    assert all(now < then for now, then in zip(busy, before))
    for equals in ([HEAVY] * 3, [LIGHT] * 3):
        assert predicted_speeds(SHARED, equals, users) == predicted_speeds(EQUAL, equals, users)


def test_measured_sets_with_priorities_are_predicted_within_a_sixth() -> None:
    known = packaged()
    sets = [one for one in measured(ROWS, known.modes[SIDE]) if one.way in LOW]
    assert len(sets) == 20
    assert error(sets, known.priority.eased, known.priority.raised) < 0.16


def test_two_users_with_servers_of_their_own_take_turns() -> None:
    apart = predicted_speeds(PER_USER, [HEAVY, HEAVY], ["a", "b"])
    together = predicted_speeds(SHARED, [HEAVY, HEAVY], ["a", "b"])
    assert sum(apart) < 1 < sum(together)


def test_a_light_user_keeps_its_speed_and_the_heavy_one_pays_for_it() -> None:
    heavy, light = predicted_speeds(PER_USER, [HEAVY, LIGHT], ["a", "b"])
    assert heavy < 0.5 < 0.8 < light


@given(st.lists(st.sampled_from([HEAVY, LIGHT]), min_size=2, max_size=5), st.sampled_from(WAYS), st.data())
def test_nobody_is_faster_beside_others(jobs: List[JobLoad], way: str, data: st.DataObject) -> None:
    users = [data.draw(st.sampled_from("ab")) for _ in jobs]
    assert all(0 < speed <= 1 for speed in predicted_speeds(way, jobs, users))


@pytest.mark.parametrize(("mode", "bound"), [("per-user", 0.08), ("shared", 0.14)])
def test_the_slowest_job_of_measured_sets_of_two_users_is_predicted_within(mode: str, bound: float) -> None:
    chosen = [one for one in load_sets() if one.mode == mode and len(set(one.users)) == 2]
    assert len(chosen) >= 11
    assert figures(judge_sets(chosen, load_left_out())).worst < bound


def test_what_servers_of_users_taught_holds_for_processes_without_mps() -> None:
    sliced = [one for one in load_sets() if way_of(one) == TIMESLICE]
    assert len(sliced) >= 39
    found = figures(judge_sets(sliced, load_left_out()))
    assert found.each < 0.05
    assert found.worst < 0.05


def test_sets_that_were_measured_in_both_ways_are_ranked_as_measured() -> None:
    work: Dict[Any, Dict[str, Tuple[float, float]]] = {}
    for one in load_sets():
        if len(set(one.users)) > 1:
            loads, users = [load_from(solo) for solo in one.solo], [str(user) for user in one.users]
            said = predicted_speeds(way_of(one), loads, users)
            work.setdefault((one.jobs, one.users), {})[way_of(one)] = (sum(one.speeds), sum(said))
    both = [found for found in work.values() if len(found) == 2]
    assert len(both) >= 10
    for found in both:
        for measured_or_said in (0, 1):
            assert found[EQUAL][measured_or_said] > found[PER_USER][measured_or_said]
