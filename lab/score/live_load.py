"""Live load, as the documents place jobs, against shares by activity: `python -m lab.score.live_load`.

The chapter's 60 and 90 tasks and 300 fresh ones (`generate`; one GPU, up to two hours) on two nodes of four
H200 under one MPS server, idle GPUs first, as in `lab.score.loads`. Live load closes a GPU whose SM activity
over the last minute is above a bound, which Slurm cannot do. The activity that shares are made from is
predicted, with errors as large as on unseen jobs. Makespan and mean completion are parts of those with whole
GPUs, slowdowns are those of running, median and worst; means over three variations.
"""

from __future__ import annotations

from math import ceil
from random import Random
from statistics import fmean, median
from typing import Dict, List, NamedTuple, Sequence, Tuple

from lab.chapter6.study import own_traces
from lab.command import print_lines
from lab.score.loads import CHOSEN, FLEET, at_load
from lab.simulate.compare import varied
from lab.simulate.generate import generate
from lab.simulate.policies import PUBLISHED_TIMING, find_policy
from slurm_gpumem.simulation.engine import Outcome, simulate
from slurm_gpumem.simulation.types import Policy, Setup, SimJob
from slurm_gpumem.simulation.what_if import SLURM_TIMING
from slurm_gpumem.site.queue_order import PATIENCE_S
from slurm_gpumem.utilization.budget import share_for
from slurm_gpumem.utilization.interference import SHARED

LOADS = (0.7, 1.0, 2.0)
FRESH, FRESH_LONGEST_S = 300, 7200.0
ERROR = 0.09
"""Standard deviation of predicted activity: off by 7 points in the mean, as docs/sharing.md has it."""
_SEEDS = 3
_LEVEL = find_policy("slurm-level")
WHOLE, MEMORY, ACTIVITY = "whole GPUs", "memory", f"activity, limit {CHOSEN:g}"
WAYS: Dict[str, Policy] = {
    WHOLE: find_policy("slurm"),
    MEMORY: _LEVEL,
    "memory, live SMACT 80 %": _LEVEL._replace(max_active=0.80, window_s=60.0),
    "memory, live SMACT 85 %": _LEVEL._replace(max_active=0.85, window_s=60.0),
    "the documents' manager, 80 %": find_policy("magm")._replace(window_s=60.0, margin_mib=0),
    ACTIVITY: _LEVEL,
    f"{ACTIVITY}, live SMACT 85 %": _LEVEL._replace(max_active=0.85, window_s=60.0),
}


class Played(NamedTuple):
    """One trace in one way; seconds."""

    makespan: float
    completion: float
    slowdown: float
    worst: float
    crashes: float


def traces() -> Dict[str, List[SimJob]]:
    """By name."""
    found = {f"{tasks} tasks": list(jobs) for tasks, jobs in own_traces().items()}
    drawn = [job for job in generate(4 * FRESH, FLEET) if job.gpus == 1 and job.work <= FRESH_LONGEST_S]
    found["fresh"] = [
        job._replace(limit=0.0, estimates={"trace": job.estimates["text"]}) for job in drawn[:FRESH]
    ]
    return found


def by_activity(jobs: Sequence[SimJob]) -> List[SimJob]:
    """The jobs asking for the larger of their memory and the share for their predicted activity."""
    rng = Random(1)
    asking = []
    for job in jobs:
        active = min(1.0, max(0.01, job.load.active + rng.gauss(0.0, ERROR)))
        share = share_for(job.load._replace(active=active), CHOSEN, CHOSEN, SHARED).share
        mib = max(job.estimates["trace"], ceil(share * FLEET.memory_mib))
        asking.append(job._replace(estimates={"trace": mib}))
    return asking


def played(jobs: Sequence[SimJob], way: str) -> Played:
    """The trace as it is and varied."""
    policy = WAYS[way]
    patience = 0.0 if policy.whole else float(PATIENCE_S)
    timing = SLURM_TIMING._replace(reserve_after_s=patience) if policy.backfill else PUBLISHED_TIMING
    setup = Setup(FLEET, policy, "trace", "exclusive" if policy.whole else "mps-shared", timing)
    asking = by_activity(jobs) if way.startswith(ACTIVITY) else list(jobs)
    runs = [_figures(simulate(varied(asking, seed), setup)) for seed in range(_SEEDS)]
    return Played(*(fmean(values) for values in zip(*runs)))


def _figures(outcome: Outcome) -> Tuple[float, ...]:
    slow = [(end - start) / job.work for job, start, end in zip(outcome.jobs, outcome.start, outcome.end)]
    completion = fmean(end - job.arrival for job, end in zip(outcome.jobs, outcome.end))
    return outcome.span, completion, median(slow), max(slow), float(sum(outcome.crashes))


def everything() -> Dict[str, Dict[str, List[Played]]]:
    """By trace, way and load."""
    return {
        name: {way: [played(at_load(jobs, load), way) for load in LOADS] for way in WAYS}
        for name, jobs in traces().items()
    }


def lines(found: Dict[str, Dict[str, List[Played]]]) -> List[str]:
    """A row for each trace and way, by load."""
    cells = "".join(f"  {f'load {load:g}':<21}" for load in LOADS)
    rows = [f"{'makespan, completion, slowdown':<47}{cells}  crashes"]
    for name, ways in found.items():
        for way in list(ways)[1:]:
            cells = "".join(
                f"  {one.makespan / whole.makespan:.2f} {one.completion / whole.completion:.2f}  "
                f"{one.slowdown:.2f}, {one.worst:.2f}"
                for one, whole in zip(ways[way], ways[WHOLE])
            )
            rows.append(f"{name:<10}{way:<37}{cells}  {sum(one.crashes for one in ways[way]):>7.1f}")
    return rows


if __name__ == "__main__":
    raise SystemExit(print_lines(lambda: lines(everything())))
