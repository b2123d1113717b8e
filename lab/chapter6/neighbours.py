"""Table 6.3 by the activity that nobody published: its crashes where a task gets that of 3 to 11 of our jobs.

    python -m lab.chapter6.neighbours [--seeds N] [--replay-90 FILE]

Each task gets the median activity of so many of our jobs with the nearest memory: on our trace in place of
its own, on the authors' because there is no other. A number is the mean over variations of the trace, the
last column the fewest and the most of all.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean
from typing import List, Optional, Sequence

from lab.chapter6.published import RECOVERY_ONLY
from lab.chapter6.replay import read_replay
from lab.chapter6.study import SEEDS, own_traces, run_all, with_our_loads
from lab.command import print_lines
from lab.places import SIMULATION, shown
from lab.simulate.compare import values_of
from slurm_gpumem.simulation.types import SimJob

NEIGHBOURS = range(3, 12)
TASKS = 90


def crashes(jobs: Sequence[SimJob], seeds: int) -> List[List[float]]:
    """Of each policy of the table, in every variation."""
    found = run_all({TASKS: jobs}, RECOVERY_ONLY, seeds)
    return [values_of(found[TASKS, one.label], "crashes") for one in RECOVERY_ONLY]


def table(replay: Optional[Path], seeds: int) -> List[str]:
    """A line for each policy."""
    ours = own_traces()
    jobs = ours[TASKS] if replay is None else read_replay(replay)
    columns = {"own": crashes(jobs, seeds)} if replay is None else {}
    for count in NEIGHBOURS:
        columns[str(count)] = crashes(with_our_loads(jobs, ours, count), seeds)
    name = replay or shown(SIMULATION / f"{TASKS}-tasks.csv")
    heads = "".join(f"{head:>5}" for head in columns)
    lines = [f"crashes of {name}, {seeds} variations", f"{'activity of':<24}{'published':>9}{heads}   all"]
    for at, one in enumerate(RECOVERY_ONLY):
        cells = "".join(f"{mean(column[at]):>5.1f}" for column in columns.values())
        values = [value for count in NEIGHBOURS for value in columns[str(count)][at]]
        said = "" if one.crashes is None else one.crashes
        lines.append(f"{one.label:<24}{said:>9}{cells}   {min(values):.0f}–{max(values):.0f}")
    return lines


def main(argv: Optional[List[str]] = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m lab.chapter6.neighbours", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"variations of the trace ({SEEDS})")
    parser.add_argument("--replay-90", type=Path, metavar="FILE", help="the authors' script of 90 tasks")
    options = parser.parse_args(argv)
    return print_lines(lambda: table(options.replay_90, options.seeds))


if __name__ == "__main__":
    raise SystemExit(main())
