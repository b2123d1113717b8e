"""The simulator against queues that ran on an H200 under real Slurm."""

from __future__ import annotations

import pytest

from lab.score import replayed, short_queue


@pytest.mark.parametrize("run", list(replayed.RUNS))
def test_a_measured_queue_takes_as_long_in_the_simulator(run: str) -> None:
    was, said = replayed.compare(run, replayed.RUNS[run])
    assert said.makespan == pytest.approx(was.makespan, rel=0.11)
    assert said.completion == pytest.approx(was.completion, rel=0.11)


@pytest.mark.parametrize("run", ["rehearsal-limit/limit-shared", "rehearsal-limit/limit-shared-long"])
def test_jobs_under_a_limit_are_slowed_down_as_much_as_was_measured(run: str) -> None:
    was, said = replayed.compare(run, replayed.RUNS[run])
    assert said.slowdown == pytest.approx(was.slowdown, rel=0.05)


def test_small_shares_that_go_around_large_ones_end_a_short_queue_sooner() -> None:
    solo = replayed.rates_of(replayed.DOCS / "rehearsal-limit")
    strict, flowing = (short_queue.played(solo, 3.5, patience) for patience in (0.0, 3600.0))
    assert flowing.completion < strict.completion < 0.5
    assert flowing.worst <= 3.5
    assert flowing.slowdown < 1.8
