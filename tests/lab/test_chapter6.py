from __future__ import annotations

import re
from random import Random

import pytest

from slurm_gpumem.lab.chapter6 import published
from slurm_gpumem.lab.chapter6.make_traces import KINDS, MIXES, Measured, make_trace
from slurm_gpumem.lab.chapter6.study import Results, own_traces, report, run_all
from slurm_gpumem.simulation.compare import values_of
from slurm_gpumem.utilization.interference import JobLoad


@pytest.fixture(scope="module")
def results() -> Results:
    return run_all(own_traces(), published.experiments(), 2)


def _mean(results: Results, tasks: int, label: str, figure: str) -> float:
    values = values_of(results[tasks, label], figure)
    return sum(values) / len(values)


def test_every_row_of_the_tables_stands_beside_its_published_figure(results: Results) -> None:
    text = "\n".join(report(results))
    for table in ("6.3", "6.4", "6.5", "6.6"):
        assert f"Table {table}" in text
    for figures in ("6.5 and 6.6", "6.7 and 6.8", "6.9 and 6.10", "6.11 and 6.12", "6.13 to 6.15"):
        assert f"Figures {figures}" in text
    for one, said in (*published.RECOVERY_ONLY, *published.ESTIMATED):
        assert re.search(rf"^{re.escape(one.label)} +{said} ", text, re.M)


@pytest.mark.parametrize("tasks", [60, 90])
def test_the_traces_have_the_published_mix(tasks: int) -> None:
    jobs = own_traces()[tasks]
    assert len(jobs) == tasks
    assert sum(job.gpus == 2 for job in jobs) == MIXES[tasks].on_two_gpus
    assert max(job.peak_mib for job in jobs) <= 28_672
    small = sum(job.peak_mib <= KINDS["light"].memory_mib[1] for job in jobs)
    assert small == MIXES[tasks].counts["light"]
    assert set(jobs[0].estimates) == {"text", "trace", "horus", "faketensor", "gpumemnet"}


def test_the_same_seed_makes_the_same_trace() -> None:
    load = JobLoad(0.5, 0.2, 0.2, 0.03)
    candidates = [Measured(f"{family}{mib}", family, mib, load, {}) for family in ("cnn", "causal-lm")
                  for mib in (1000, 9000, 20_000)]  # fmt: skip
    first, second = (make_trace(candidates, MIXES[60], Random(5)) for _ in range(2))
    assert first == second


def test_what_the_chapter_concludes_holds_in_the_simulation(results: Results) -> None:
    exclusive = _mean(results, 90, "exclusive", "makespan_s")
    mps = _mean(results, 90, "worst fit (OWF), MPS", "makespan_s")
    streams = _mean(results, 90, "worst fit (OWF), streams", "makespan_s")
    assert mps < streams < exclusive
    # Conditions and estimates prevent crashes.
    crashes = [_mean(results, 90, label, "crashes") for label in ("RR", "MAGM", "MAGM, SMACT 75 %, 5 GB")]
    assert crashes == sorted(crashes, reverse=True)
    assert _mean(results, 60, "RR, MPS", "crashes") > _mean(results, 60, "MAGM, GPUMemNet, 80 %", "crashes")
    # Time slices cost energy, MPS saves some.
    energy = {one.label: _mean(results, 60, one.label, "energy_mj") for one, _, _ in published.HEAVY}
    assert energy["MAGM, GPUMemNet, 80 %"] < energy["exclusive"] < energy["RR, streams"]


def test_this_projects_requests_crash_nothing_on_the_published_traces(results: Results) -> None:
    for one in published.OURS:
        assert _mean(results, one.tasks, one.label, "crashes") == 0
