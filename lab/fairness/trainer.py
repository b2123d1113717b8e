"""The program of a job on the dev cluster: counts steps, saves where it is, goes on from there.

    python trainer.py FOLDER NAME STEPS --step-s 0.25 [--checkpoint] [--slot-s 6]

FOLDER/NAME.steps gets a line for each step that was done, FOLDER/NAME.runs one for each start and end. It needs
no package: it runs as a job, by its path.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, List


def main(argv: List[str]) -> int:
    """Train to the last step, or to a signal; then save and make room."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("name")
    parser.add_argument("steps", type=int)
    parser.add_argument("--step-s", type=float, required=True)
    parser.add_argument("--checkpoint", action="store_true", help="save at a signal and go on from there")
    parser.add_argument("--slot-s", type=float, default=0.0, help="make room after this time")
    args = parser.parse_args(argv)
    run = os.environ.get("SLURM_RESTART_COUNT", "0")
    saved = args.folder / f"{args.name}.checkpoint"
    told: List[int] = []

    def notice(number: int, frame: Any) -> None:
        told.append(number)

    if args.checkpoint:
        for number in (signal.SIGALRM, signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, notice)
        signal.setitimer(signal.ITIMER_REAL, args.slot_s)
    step = int(saved.read_text()) if args.checkpoint and saved.exists() else 0
    with (
        open(args.folder / f"{args.name}.runs", "a", buffering=1) as runs,
        open(args.folder / f"{args.name}.steps", "a", buffering=1) as steps,
    ):
        runs.write(f"start {run} {time.time():.3f} {step}\n")
        while step < args.steps and not told:
            time.sleep(args.step_s)
            step += 1
            steps.write(f"{run} {step} {time.time():.3f}\n")
        if step < args.steps:
            beside = saved.with_suffix(".new")
            beside.write_text(str(step))
            os.replace(beside, saved)
        runs.write(f"end {run} {time.time():.3f} {step}\n")
    # A preempted job is requeued by Slurm, except in its grace time, where it must ask for it as after a slot.
    if step < args.steps and signal.SIGTERM not in told:
        subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
