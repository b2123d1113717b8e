"""When a slot ends, and who is told: the job's processes that wait for it, and nobody else."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Optional

import pytest

from slurm_gpumem.formats.comment import CommentRecord
from slurm_gpumem.node.jobs import NodeJob
from slurm_gpumem.node.sampler import slots
from slurm_gpumem.node.sampler.slots import SlotSignals, slot_of
from slurm_gpumem.node.sampler.usage import JobUsage

CATCHES = "import signal; signal.signal(signal.SIGUSR1, lambda *_: print('told', flush=True)); "
MINE, OTHER = 987_654_321, 987_654_322
"""No real cluster on this machine has such jobs."""
SLEEPS = "print('ready', flush=True); import time; time.sleep(300)"


def job(
    slot: Optional[int] = 7200, save: Optional[int] = None, started: float = 1000.0, job_id: int = MINE
) -> NodeJob:
    claim = CommentRecord(slot=slot, save=save)
    return NodeJob(job_id, os.geteuid(), "anna", ("GPU-1",), "mps", started, claim=claim)


@pytest.mark.parametrize(
    ("slot", "save", "lead"),
    [(7200, None, 300), (600, None, 60), (7200, 4, 60), (7200, 200, 400), (600, 400, 300), (100, 1, 10)],
)
def test_the_time_to_save_follows_from_what_saving_took(slot: int, save: Optional[int], lead: int) -> None:
    assert slot_of(job(slot, save)) == (1000 + slot, 1000 + slot - lead)


def test_a_job_without_slots_has_none() -> None:
    assert slot_of(job(slot=None)) is None


def started(code: str, job_id: int, **env: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={"SLURM_JOB_ID": str(job_id), **env},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_only_the_jobs_own_processes_that_catch_the_signal_get_it() -> None:
    mine = started(CATCHES + SLEEPS, MINE, GPUMEM_SLOT_END="8200")
    deaf = started(SLEEPS, MINE)
    others = started(CATCHES + SLEEPS, OTHER)
    # Of a run before, or of another cluster's job of the same number on this machine.
    earlier = started(CATCHES + SLEEPS, MINE, GPUMEM_SLOT_END="8100")
    here = {MINE: job(), OTHER: job(job_id=OTHER, started=4e9)}
    usage = {MINE: JobUsage(0), OTHER: JobUsage(0)}
    said: list[str] = []
    signals = SlotSignals(said.append)
    try:
        signals.look(here, usage)
        signals.look(here, usage)
        assert mine.stdout is not None
        assert mine.stdout.readline() == "told\n"
        assert said == [f"job {MINE}: its slot ends soon; 1 of its processes told"]
        assert (deaf.poll(), others.poll(), earlier.poll()) == (None, None, None)
        # It goes on after its slot: nobody ends it, and its record says so.
        assert usage[MINE].notes == {slots._RUNS_ON}
        assert usage[OTHER].notes == set()
    finally:
        for process in (mine, deaf, others, earlier):
            process.kill()
            process.wait()
    for process in (others, earlier):
        assert process.stdout is not None
        assert process.stdout.read() == ""
