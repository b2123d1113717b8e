"""The simulator against queues that ran on an H200 under real Slurm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lab.score import replayed, short_queue

ROOT = Path(__file__).resolve().parents[2]


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


def test_a_rehearsal_on_a_gpu_prints_what_its_page_says() -> None:
    program, rows = ROOT / "lab" / "gpu" / "rehearsal.py", replayed.DOCS / "rehearsal-priorities"
    done = subprocess.run(
        [sys.executable, program, "--out", rows, "--figures"], capture_output=True, text=True
    )
    said = done.stdout.splitlines()
    assert said[1:3] == [
        "makespan 235.6 of 584.9 s (40 %)",
        "mean time to completion 95.1 of 299.4 s (32 %)",
    ], done.stderr
    assert said[-2:] == ["GPU time saved 63 %, by gpumem report 67 %", "scancels 2, victims 0"]
