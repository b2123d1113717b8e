"""How far `sharing.max_slowdown` holds, by way of sharing: `python -m lab.score.mixes`.

GPUs are filled in random order with the jobs of the measured sets, as Slurm would by their shares, and dealt
out among users; the speeds are predicted. Nothing here is measured with those neighbours.
"""

from __future__ import annotations

import random
from statistics import median
from typing import List, NamedTuple, Sequence

from lab.command import print_lines
from lab.shared_speeds import filled_gpus, load_from, predicted_speeds
from lab.utilization_runs import load_sets
from slurm_gpumem.utilization.budget import share_for, worst_of
from slurm_gpumem.utilization.interference import PER_USER, SHARED, TIMESLICE, JobLoad

LIMITS = (1.25, 1.5, 1.99, 2.0, 3.0, 3.5)
USERS = ((PER_USER, 1), (PER_USER, 2), (PER_USER, 9), (SHARED, 2), (TIMESLICE, 2))
_FILLS = 600
_HAIR = 1e-3


class Held(NamedTuple):
    """One limit in one way of sharing."""

    way: str
    users: int
    limit: float
    jobs: float
    """On a GPU, on average."""
    work: float
    """Jobs' worth of work that a GPU does."""
    median: float
    """Slowdown of a job ..."""
    of_most: float
    """... as a part of the most that its share lets it lose, where that is 5 % or more ..."""
    worst: float
    """... and of the slowest of all."""
    above: float
    """Share of GPUs with a job above the limit."""


def held(jobs: Sequence[JobLoad], way: str, users: int, limit: float) -> Held:
    """What becomes of a limit on GPUs that are full."""
    rng = random.Random(0)
    shares = [(job, share_for(job, limit, limit, way).share) for job in jobs]
    shares_of = dict(shares)
    gpus, found = [], []
    for gpu in filled_gpus(shares, _FILLS, rng):
        gpus.append(gpu)
        found.append(predicted_speeds(way, gpu, [str(rng.randrange(users)) for _ in gpu]))
    slow = [1 / speed for speeds in found for speed in speeds]
    most = [worst_of(job, shares_of[job], limit, way) for gpu in gpus for job in gpu]
    of_most = [(one - 1) / (bound - 1) for one, bound in zip(slow, most) if bound >= 1.05]
    above = sum(1 / min(speeds) > limit * (1 + _HAIR) for speeds in found)
    work = sum(map(sum, found))
    usual = median(of_most) if of_most else 0.0
    return Held(
        way, users, limit, len(slow) / _FILLS, work / _FILLS, median(slow), usual, max(slow), above / _FILLS
    )


def lines() -> List[str]:
    """Every limit in every way."""
    named = {name: load_from(solo) for one in load_sets() for name, solo in zip(one.jobs, one.solo)}
    jobs = list(named.values())
    found = [held(jobs, way, users, limit) for way, users in USERS for limit in LIMITS]
    head = "way        users  max_slowdown  jobs  work  median  of most  worst  GPUs above it"
    return [
        head,
        *(
            f"{one.way:<10}{one.users:>6}{one.limit:>14g}{one.jobs:>6.1f}{one.work:>6.2f}{one.median:>8.2f}"
            f"{one.of_most:>9.2f}{one.worst:>7.2f}{100 * one.above:>13.0f} %"
            for one in found
        ),
    ]


if __name__ == "__main__":
    raise SystemExit(print_lines(lambda: lines()))
