"""What `sharing.max_slowdown` does at every load: `python -m lab.score.loads`.

The 60 jobs of `lab/data/simulation/60-tasks.csv` (or the 90 lighter ones beside it: `--trace`), dealt out
among three users, arrive on two nodes of four H200 as fast as makes up a load: 1 is as much work as the GPUs
do with one job on each. What is printed is the mean time from submission to the end, as a part of what it is
with whole GPUs; then the same by how long others may go around a job that waits, and the longest wait. All of
it is simulated; `python -m lab.score.replayed` holds the simulator against queues that were measured.
"""

from __future__ import annotations

import argparse
from math import inf
from pathlib import Path
from statistics import mean
from typing import Dict, List, NamedTuple, Optional, Sequence

from lab.simulate.compare import varied
from lab.simulate.figures import figures
from lab.simulate.policies import find_policy, timing_of, with_slowdown
from lab.simulate.trace_file import read_trace
from slurm_gpumem.simulation.engine import simulate
from slurm_gpumem.simulation.types import Policy, Setup, SimJob
from slurm_gpumem.simulation.what_if_text import parse_fleet
from slurm_gpumem.site.queue_order import PATIENCE_S

TRACE = Path(__file__).parents[1] / "data" / "simulation" / "60-tasks.csv"
FLEET = parse_fleet("2x4xh200")
LOADS = (0.3, 0.7, 1.0, 2.0, 4.0)
LIMITS = (1.15, 1.25, 1.5, 1.99, 2.0, 2.5, 3.0, 3.5, 4.0)
PLACEMENTS = ("pack", "spread", "level")
PATIENCE_H = (0.0, 0.5, 1.0, 4.0, inf)
CHOSEN = 3.5
WAYS = {"mps-shared": "one server", "mps": "per user"}
_USERS = "abc"
_SEEDS = 3


class Point(NamedTuple):
    """One way of sharing at one load."""

    way: str
    placement: str
    load: float
    limit: float
    completion: float
    """Mean time to completion, as a part of that with whole GPUs."""
    slowdown: float
    """Mean, while running."""


class Played(NamedTuple):
    """A trace in one way; hours, means over seeds."""

    completion: float
    slowdown: float
    longest_wait: float


def points(jobs: Sequence[SimJob]) -> List[Point]:
    """Every way, placement, load and limit."""
    found = []
    for load in LOADS:
        trace = at_load(jobs, load)
        whole = whole_gpus(trace).completion
        for way in WAYS:
            for placement in PLACEMENTS:
                for limit in LIMITS:
                    policy = with_slowdown(find_policy(f"slurm-{placement}"), limit)
                    one = played(trace, policy, way)
                    found.append(Point(way, placement, load, limit, one.completion / whole, one.slowdown))
    return found


def at_load(jobs: Sequence[SimJob], load: float) -> List[SimJob]:
    """The jobs, of several users, arriving faster or slower so that they make up this load."""
    span = sum(job.work for job in jobs) / (FLEET.gpus * load)
    stretch = span / max(job.arrival for job in jobs)
    return [
        job._replace(arrival=job.arrival * stretch, user=_USERS[place % len(_USERS)])
        for place, job in enumerate(jobs)
    ]


def whole_gpus(trace: Sequence[SimJob]) -> Played:
    """Slurm without sharing, as it is unless a site says otherwise."""
    return played(trace, find_policy("slurm"), "exclusive", 0.0)


def played(trace: Sequence[SimJob], policy: Policy, way: str, patience_s: float = PATIENCE_S) -> Played:
    """The trace as it is and varied."""
    setup = Setup(FLEET, policy, "trace", way, timing_of(policy)._replace(reserve_after_s=patience_s))
    outcomes = [simulate(varied(trace, seed), setup) for seed in range(_SEEDS)]
    runs = [figures(outcome) for outcome in outcomes]
    waits = [max(s - j.arrival for j, s in zip(one.jobs, one.start)) for one in outcomes]
    return Played(
        mean(run.completion.mean for run in runs) / 3600,
        mean(run.slowdown for run in runs),
        mean(waits) / 3600,
    )


def patience(jobs: Sequence[SimJob]) -> Dict[str, List[Played]]:
    """By how long others may go around a job: each load, at the chosen limit; whole GPUs first."""
    policy = with_slowdown(find_policy("slurm-level"), CHOSEN)
    traces = [at_load(jobs, load) for load in LOADS]
    found = {"whole GPUs": [whole_gpus(trace) for trace in traces]}
    for hours in PATIENCE_H:
        name = "without end" if hours == inf else f"{hours:g} h"
        found[name] = [played(trace, policy, "mps-shared", 3600 * hours) for trace in traces]
    return found


def patience_lines(found: Dict[str, List[Played]]) -> List[str]:
    """A table: completion as a part of that with whole GPUs (longest wait in hours) by load."""
    whole = [one.completion for one in found["whole GPUs"]]
    rows = [f"{'others go around it':<29}" + "".join(f"{f'load {load:g}':>15}" for load in LOADS)]
    for name, ones in found.items():
        cells = (f"{one.completion / base:.2f} ({one.longest_wait:.1f} h)" for one, base in zip(ones, whole))
        rows.append(f"{name:<29}" + "".join(f"{cell:>15}" for cell in cells))
    return rows


def lines(found: Sequence[Point]) -> List[str]:
    """A table: a row for each way, placement and limit; completion (and slowdown) by load."""
    rows = [
        f"{'way':<12}{'placement':<11}{'limit':>6}" + "".join(f"{f'load {load:g}':>15}" for load in LOADS)
    ]
    for way, words in WAYS.items():
        for placement in PLACEMENTS:
            for limit in LIMITS:
                ours = [p for p in found if (p.way, p.placement, p.limit) == (way, placement, limit)]
                cells = "".join(f"{f'{p.completion:.2f} ({p.slowdown:.2f})':>15}" for p in ours)
                rows.append(f"{words:<12}{placement:<11}{limit:>6g}{cells}")
    return rows


def main(argv: Optional[List[str]] = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m lab.score.loads", description=__doc__)
    parser.add_argument("--trace", type=Path, default=TRACE)
    args = parser.parse_args(argv)
    jobs = read_trace(args.trace)
    found = points(jobs)
    print("\n".join([*lines(found), "", *patience_lines(patience(jobs))]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
