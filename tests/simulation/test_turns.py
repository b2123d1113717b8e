"""Slots and preemption in the simulator."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Dict

import pytest

from lab.simulate.__main__ import main
from lab.simulate.figures import figures
from lab.simulate.trace_file import read_trace
from slurm_gpumem.errors import UsageError
from slurm_gpumem.simulation.engine import Outcome, simulate
from slurm_gpumem.simulation.types import Turns
from tests.simulation.jobs import job, setup

TRACE = Path(__file__).parents[2] / "lab" / "data" / "simulation" / "two-users.csv"
TWO_HOURS = Turns(7200.0)


def _waits(outcome: Outcome) -> Dict[str, float]:
    return {user.user: user.waiting for user in figures(outcome).users}


@pytest.mark.parametrize("policy", ["slurm", "slurm-pack"])
def test_with_slots_five_short_jobs_wait_at_most_half_as_long_behind_fifty_long_ones(policy: str) -> None:
    jobs = read_trace(TRACE)
    without, slots = (simulate(jobs, setup(policy, gpus=4, turns=turns)) for turns in (Turns(), TWO_HOURS))
    assert _waits(slots)["b"] <= _waits(without)["b"] / 2
    assert figures(slots).ended == 55


def test_every_run_goes_on_where_the_last_one_saved() -> None:
    jobs = read_trace(TRACE)
    outcome = simulate(jobs, setup("slurm", gpus=4, turns=TWO_HOURS, record=True))
    runs = Counter(run.job for run in outcome.runs)
    lost = 0.0
    for one, start, end in zip(outcome.jobs, outcome.start, outcome.end):
        took = sum(run.end - run.start for run in outcome.runs if run.job == one.number)
        again = (runs[one.number] - 1) * (TWO_HOURS.save_s + TWO_HOURS.restart_s)
        assert took == pytest.approx(one.work + again)
        assert end - start == pytest.approx(took)
        lost += again
    assert outcome.sums.lost_seconds == pytest.approx(lost)
    assert max(run.end - run.start for run in outcome.runs) <= 7200


def test_a_job_waits_behind_those_that_wait_when_its_slot_is_over() -> None:
    jobs = [job(number, number, work=1000.0) for number in range(3)]
    turns = Turns(600.0, save_s=0.0, restart_s=0.0)
    outcome = simulate(jobs, setup("slurm", turns=turns, record=True))
    assert [run.job for run in outcome.runs] == [0, 1, 2, 0, 1, 2]
    assert list(outcome.end) == pytest.approx([2200.0, 2600.0, 3000.0])


@pytest.mark.parametrize(("policy", "mib"), [("slurm", 4096), ("slurm-pack", 30_000)])
@pytest.mark.parametrize(("grace", "lost"), [(60.0, 40.0), (10.0, 510.0)])
def test_a_preempted_job_keeps_what_it_saved_in_its_grace_time(
    policy: str, mib: int, grace: float, lost: float
) -> None:
    jobs = [job(0, work=1000.0, mib=mib), job(1, 500.0, work=100.0, mib=mib, priority=1)]
    turns = Turns(save_s=30.0, restart_s=10.0, preempt=True, grace_s=grace)
    outcome = simulate(jobs, setup(policy, turns=turns))
    part = 1.0 if policy == "slurm" else 30 / 40
    assert outcome.start[1] == pytest.approx(500.0 + min(grace, turns.save_s))
    assert outcome.sums.lost_seconds == pytest.approx(lost * part)
    # Requeued, it may start 121 s later: the other is over by then.
    again = outcome.start[1] + 121.0
    assert outcome.end[0] == pytest.approx(again + (510.0 if grace >= turns.save_s else 1000.0))


def test_a_job_takes_as_few_places_as_it_needs_and_none_of_its_own_priority() -> None:
    running = [job(0, mib=20_000, work=5000.0, priority=1), job(1, mib=20_000, work=5000.0)]
    running += [job(2, mib=10_000, work=5000.0), job(3, 1.0, mib=10_000, work=5000.0)]
    way = setup("slurm-pack", gpus=2, turns=Turns(preempt=True), record=True)
    for mib, preempted in ((9000, []), (30_000, [3]), (40_960, [2, 3])):
        late = job(4, 100.0, mib=mib, priority=1)
        outcome = simulate([*running, late], way)
        assert outcome.start[4] == pytest.approx(100.0)
        assert sorted(run.job for run in outcome.runs if run.end == pytest.approx(100.0)) == preempted


def test_slots_that_leave_no_time_to_train_are_refused() -> None:
    with pytest.raises(UsageError, match="leaves no time to train"):
        simulate([job(0)], setup("slurm", turns=Turns(60.0)))
    with pytest.raises(UsageError, match="requeues no jobs"):
        simulate([job(0)], setup("exclusive", turns=TWO_HOURS))


def test_the_command_prints_the_waits_of_each_user(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [str(TRACE), "--policy", "slurm", "--slot", "none,2h", "--by-user"]
    assert main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "lost GPU h" in lines[1]
    found = [line.split() for line in lines if " b " in line]
    assert [cells[:-3] for cells in found] == [["slurm", "b", "5"], ["slurm", "slot", "2h", "b", "5"]]
    assert main([str(TRACE), "--slot", "two"]) == 2
    assert "'two' is not" in capsys.readouterr().err
