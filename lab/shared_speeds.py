"""How fast jobs run in a set, for fits and scores: from metrics of each job alone."""

from __future__ import annotations

import random
from typing import Iterator, List, Mapping, NamedTuple, Sequence, Tuple

from slurm_gpumem.utilization import interference
from slurm_gpumem.utilization.interference import JobLoad, Prepared, pressure, stretch

_USUAL_OCCUPANCY, _USUAL_DRAM = 0.3, 0.4
"""For each active multiprocessor: where interference.traits are 0."""


class SetJob(NamedTuple):
    """A job of a set."""

    user: str
    side: Prepared
    """Under the coefficients of jobs side by side."""


def predicted_speeds(way: str, loads: Sequence[JobLoad], users: Sequence[str]) -> List[float]:
    """The share of its speed alone that each of these users' jobs keeps; `way`: one of interference.WAYS."""
    return interference.speeds(
        way, [SetJob(user, interference.prepared(load)) for load, user in zip(loads, users)]
    )


def filled_gpus(
    shares: Sequence[Tuple[JobLoad, float]], count: int, rng: random.Random
) -> Iterator[List[JobLoad]]:
    """GPUs filled with jobs in random order, each with what still fits, as backfill does."""
    order = list(shares)
    for _ in range(count):
        rng.shuffle(order)
        left, gpu = 1.0, []
        for job, share in order:
            if share <= left + 1e-9:
                gpu.append(job)
                left -= share
        yield gpu


def load_from(values: Mapping[str, float]) -> JobLoad:
    """A measured job by the names of its metrics."""
    return JobLoad(values["sm_active"], values["sm_occupancy"], values["dram_active"], values["step_seconds"])


def usual_load(active: float, step: float) -> JobLoad:
    """A job of which only activity and steps are known: what else matters is taken for usual (no trait)."""
    return JobLoad(active, _USUAL_OCCUPANCY * active, _USUAL_DRAM * active, step)


def speeds(jobs: Sequence[JobLoad], known: Mapping[str, float]) -> List[float]:
    """The share of its speed alone that each job keeps in this set."""
    pressures = [pressure(job, known) for job in jobs]
    total = sum(pressures)
    return [1 / stretch(job, total - own, known) for job, own in zip(jobs, pressures)]


def simple_speed(jobs: Sequence[JobLoad]) -> float:
    """The rule that needs no fit, one speed for all: min(1, 1 / sum of activities)."""
    return min(1.0, 1 / max(sum(job.active for job in jobs), 1e-9))
