"""Two users, 50 long jobs and five short ones: what slots buy, and that nothing is done twice."""

from __future__ import annotations

import os
from typing import Any, Dict, List

import pytest

from lab.fairness.run import play
from lab.fairness.score import REPEATS, ROWS, kept, measured, read_rows, simulated
from lab.fairness.workload import LONG, WAYS, trace

PAIRS = [("age", "age-slots"), ("shares", "shares-slots"), ("first", "first-slots")]


@pytest.fixture(scope="module")
def rows() -> Dict[str, List[Dict[str, Any]]]:
    found = read_rows(ROWS)
    assert list(found) == list(WAYS)
    return found


@pytest.mark.parametrize(("without", "slots"), PAIRS)
def test_with_slots_the_short_jobs_waited_at_most_half_as_long(
    rows: Dict[str, List[Dict[str, Any]]], without: str, slots: str
) -> None:
    assert measured(rows[slots]).short_wait <= measured(rows[without]).short_wait / 2
    site = [simulated(WAYS[name]).short_wait for name in (without, slots)]
    assert site[1] <= site[0] / 2


def test_no_step_of_a_job_that_saves_was_lost_or_done_twice(
    rows: Dict[str, List[Dict[str, Any]]],
) -> None:
    for name in WAYS:
        assert len(rows[name]) == 55
        assert {row["different"] - row["steps"] for row in rows[name]} == {0}
        if name != "preempt":
            assert {row["done"] - row["steps"] for row in rows[name]} == {0}


def test_neither_was_one_where_prologs_gave_up() -> None:
    for name, again in read_rows(REPEATS).items():
        jobs, _, in_one_run, _, done_again = kept(again)
        assert (jobs, done_again) == (50, 0)
        assert in_one_run == 0 or name.startswith("preempt")


@pytest.mark.slurm
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: hooks run as root")
def test_on_real_daemons_a_short_job_goes_between_the_slots_of_long_ones() -> None:
    jobs = trace(WAYS["age-slots"])
    few = [job for job in jobs if job.user == LONG][:4] + [job for job in jobs if job.user != LONG][:1]
    *long, short = play("age-slots", few, places=2)
    assert all(row["done"] == row["different"] == row["steps"] for row in (*long, short))
    assert all(len(row["runs"]) > 1 for row in long)
    assert short["runs"][0][1] < min(row["runs"][-1][1] for row in long)
