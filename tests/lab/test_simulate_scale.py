from __future__ import annotations

import time

import pytest

from lab.simulate.figures import figures
from lab.simulate.generate import generate
from lab.simulate.policies import POLICIES, timing_of
from slurm_gpumem.simulation.engine import simulate
from slurm_gpumem.simulation.types import Fleet, Setup
from tests.support.timing import slowness


def _seconds_per_job(jobs: int, nodes: int, policy: str) -> float:
    fleet = Fleet(nodes, 8, 40 * 1024)
    trace = generate(jobs, fleet)
    chosen = POLICIES[policy]
    mode = "exclusive" if chosen.whole else "mps"
    begin = time.process_time()
    found = figures(simulate(trace, Setup(fleet, chosen, "text", mode, timing_of(chosen))))
    assert found.ended == jobs
    return (time.process_time() - begin) / jobs


@pytest.mark.timing
@pytest.mark.parametrize("policy", ["slurm", "slurm-pack", "worst-fit"])
def test_ten_times_as_many_jobs_on_ten_times_as_many_gpus_cost_little_more_each(policy: str) -> None:
    # make bench-simulate goes up to a million jobs on ten thousand GPUs.
    small, large = _seconds_per_job(2000, 10, policy), _seconds_per_job(20_000, 100, policy)
    assert large < 2 * small
    assert large < 0.0006 * slowness()


def test_generated_jobs_have_the_published_sizes_and_the_wanted_load() -> None:
    fleet = Fleet(50, 8, 40 * 1024)
    jobs = generate(20_000, fleet, seed=3, load=0.8)
    alone = sum(job.gpus == 1 for job in jobs) / len(jobs)
    eight = sum(job.gpus == 8 for job in jobs) / len(jobs)
    assert alone == pytest.approx(0.525, abs=0.02)
    assert eight == pytest.approx(0.226, abs=0.02)
    span = jobs[-1].arrival
    assert sum(job.work * job.gpus for job in jobs) / (span * fleet.gpus) == pytest.approx(0.8, abs=0.05)
    assert jobs == generate(20_000, fleet, seed=3, load=0.8)
