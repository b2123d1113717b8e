"""Short jobs on one GPU, all queued at once: `python -m lab.score.short_queue`.

The 24 jobs of `lab/gpu/rehearsal.py`, with the rates and activities that were measured alone on an
H200 (two runs), ten seconds of start-up, and shares as `gpusbatch` asks for them; simulated by limit, with
Slurm's own order of the queue and with small shares that go around large ones; the latter also for the other
ways to share, of jobs of three users.
"""

from __future__ import annotations

from math import ceil
from statistics import fmean, median
from typing import Any, Dict, List, NamedTuple, Tuple

from lab.score.replayed import DOCS, rates_of
from lab.shared_speeds import usual_load
from lab.simulate.policies import find_policy
from slurm_gpumem.simulation.engine import simulate
from slurm_gpumem.simulation.requests import WAYS
from slurm_gpumem.simulation.types import Fleet, Setup, SimJob, Timing
from slurm_gpumem.site.queue_order import PATIENCE_S
from slurm_gpumem.utilization.budget import share_for

MEMORY_GIB = {"small": 8, "text16": 16, "conv32": 20, "conv256": 36, "text128": 40}
QUEUE: Tuple[Tuple[str, int], ...] = (
    ("small", 11), ("conv256", 24), ("text16", 18), ("small", 9), ("conv32", 16), ("small", 14),
    ("text128", 28), ("small", 10), ("text16", 14), ("small", 16), ("conv32", 20), ("small", 12),
    ("text16", 22), ("small", 9), ("conv256", 20), ("small", 17), ("text16", 15), ("small", 13),
    ("conv32", 18), ("small", 15), ("text128", 34), ("small", 10), ("text16", 25), ("small", 12),
)  # fmt: skip
"""Kind and seconds of training alone: 12 light jobs, 8 medium, 4 heavy."""
RUNS = ("rehearsal", "rehearsal-limit")
LIMITS = (1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
_GPU = Fleet(nodes=1, gpus_per_node=1, memory_mib=140 * 1024)
_STARTUP_S = 10.0


class Played(NamedTuple):
    """Parts of the same jobs one after another; slowdowns of training."""

    makespan: float
    completion: float
    slowdown: float
    worst: float


def played(
    solo: Dict[str, Any], limit: float, patience_s: float, scale: float = 1.0, mode: str = "mps-shared"
) -> Played:
    """The queue at a limit."""
    jobs: List[SimJob] = []
    for number, (kind, seconds) in enumerate(QUEUE):
        load = usual_load(solo[kind]["sm"], 1 / solo[kind]["steps_per_s"])
        share = ceil(share_for(load, limit, limit, WAYS[mode]).share * 140) * 1024
        memory = (MEMORY_GIB[kind] + 2) * 1024
        asked = {"trace": max(share, memory)}
        work = _STARTUP_S + scale * seconds
        job = SimJob(number, 0.0, work, 1, memory, load, startup_s=_STARTUP_S, limit=3600.0, estimates=asked)
        jobs.append(job._replace(user=str(number % 3)))
    timing = Timing(backfill_s=2.0, reserve_after_s=patience_s)
    outcome = simulate(jobs, Setup(_GPU, find_policy("slurm-pack"), "trace", mode, timing))
    ends, clock = [], 0.0
    for job in jobs:
        clock += job.work
        ends.append(clock)
    slow = [
        (end - start - _STARTUP_S) / (job.work - _STARTUP_S)
        for job, start, end in zip(jobs, outcome.start, outcome.end)
    ]
    return Played(outcome.span / clock, fmean(outcome.end) / fmean(ends), median(slow), max(slow))


def main() -> int:
    """Print a line for each limit; four times as long jobs train for a minute."""
    solos = [rates_of(DOCS / run) for run in RUNS]
    print(
        f"{'train':<8}{'way':<12}{'others go around':<18}{'limit':>6}{'makespan':>10}{'completion':>12}"
        f"{'slowdown':>16}"
    )
    for scale, train in ((1.0, "17 s"), (4.0, "67 s")):
        for mode, patience in (("mps-shared", 0.0), *((mode, float(PATIENCE_S)) for mode in WAYS)):
            for limit in LIMITS:
                found = [played(solo, limit, patience, scale, mode) for solo in solos]
                one = Played(*(fmean(values) for values in zip(*found)))
                print(
                    f"{train:<8}{mode:<12}{'for an hour' if patience else 'not at all':<18}{limit:>6g}"
                    f"{one.makespan:>10.2f}{one.completion:>12.2f}{one.slowdown:>9.2f}, {one.worst:.2f}"
                )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
