"""Two users, 50 long jobs and five short ones: what slots buy, and that nothing is done twice."""

from __future__ import annotations

import os

import pytest

from lab.fairness.run import play
from lab.fairness.workload import LONG, WAYS, trace


@pytest.mark.slurm
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: hooks run as root")
def test_on_real_daemons_a_short_job_goes_between_the_slots_of_long_ones() -> None:
    jobs = trace(WAYS["age-slots"])
    few = [job for job in jobs if job.user == LONG][:4] + [job for job in jobs if job.user != LONG][:1]
    *long, short = play("age-slots", few, places=2)
    assert all(row["done"] == row["different"] == row["steps"] for row in (*long, short))
    assert all(len(row["runs"]) > 1 for row in long)
    assert short["runs"][0][1] < min(row["runs"][-1][1] for row in long)
