"""Two users, 50 long jobs and five short ones: what slots buy, and that nothing is done twice."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest

from lab.fairness.score import REPEATS, ROWS, WAYS, by_way, kept, measured, simulated

PAIRS = [("age", "age-slots"), ("shares", "shares-slots"), ("first", "first-slots")]


@pytest.fixture(scope="module")
def rows() -> Dict[str, List[Dict[str, Any]]]:
    found = by_way(ROWS)
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
    for name, again in by_way(REPEATS).items():
        jobs, _, in_one_run, _, done_again = kept(again)
        assert (jobs, done_again) == (50, 0)
        assert in_one_run == 0 or name.startswith("preempt")
