"""The program of a job on the dev cluster: counts steps, saves where it is, goes on from there.

    python trainer.py FOLDER NAME STEPS --step-s 0.25 [--checkpoint]

FOLDER/NAME.steps gets a line for each step that was done, FOLDER/NAME.runs one for each start and end.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import List

from slurm_gpumem.adapters.slot_run import SlotRun, resume_file


def main(argv: List[str]) -> int:
    """Train to the last step, or until it is told to make room; then save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("name")
    parser.add_argument("steps", type=int)
    parser.add_argument("--step-s", type=float, required=True)
    parser.add_argument("--checkpoint", action="store_true", help="save when told and go on from there")
    args = parser.parse_args(argv)
    number = os.environ.get("SLURM_RESTART_COUNT", "0")
    run = SlotRun() if args.checkpoint else None
    begun = resume_file() if args.checkpoint else None
    step = int(Path(begun).read_text()) if begun else 0
    with open(args.folder / f"{args.name}.steps", "a", buffering=1, encoding="utf-8") as steps:
        _note(args, "start", number, step)
        while step < args.steps and not (run and run.told):
            time.sleep(args.step_s)
            step += 1
            steps.write(f"{number} {step} {time.time():.3f}\n")
    if run and run.folder and step < args.steps:
        checkpoint, began = run.folder / f"step-{step}", time.time()
        checkpoint.write_text(str(step))
        run.saved(checkpoint, step, began)
        _note(args, "end", number, step)
        run.leave()
    _note(args, "end", number, step)
    return 0


def _note(args: argparse.Namespace, what: str, number: str, step: int) -> None:
    with open(args.folder / f"{args.name}.runs", "a", encoding="utf-8") as runs:
        runs.write(f"{what} {number} {time.time():.3f} {step}\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
