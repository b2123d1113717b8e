"""A simulation in figures: times, crashes, energy, use of the GPUs; of one run or over several seeds."""

from __future__ import annotations

from math import isnan
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from slurm_gpumem.simulation.engine import Outcome
from slurm_gpumem.simulation.what_if import percentile

_HOUR = 3600.0


class Times(NamedTuple):
    """A time over all jobs, in seconds."""

    mean: float
    median: float
    p95: float


class UserWaits(NamedTuple):
    """How one user's jobs fared, in seconds."""

    user: str
    jobs: int
    waiting: float
    longest: float
    """Of these waits."""
    completion: float


class Figures(NamedTuple):
    """What a table has of one run."""

    jobs: int
    ended: int
    makespan_s: float
    waiting: Times
    """Until the attempt that ended: what crashed attempts took counts here."""
    execution: Times
    completion: Times
    slowdown: float
    """Mean of execution over the time alone."""
    slowdown_p95: float
    crashes: int
    refused: int
    over_limit: int
    energy_mj: float
    gpu_hours: float
    """GPUs with a job on them."""
    memory: float
    """Mean share of all GPUs' memory in use."""
    active: float
    """Mean SM activity of all GPUs."""
    queue: float
    """Mean number of waiting jobs."""
    longest_queue: int
    lost_gpu_hours: float
    """Saving, beginning again from a checkpoint, and work that was lost; shares count as parts of a GPU."""
    users: Tuple[UserWaits, ...]


def figures(outcome: Outcome) -> Figures:
    """The figures of one run."""
    waiting: List[float] = []
    execution: List[float] = []
    completion: List[float] = []
    slowdowns: List[float] = []
    by_user: Dict[str, List[Tuple[float, float]]] = {}
    for job, start, end in zip(outcome.jobs, outcome.start, outcome.end):
        if isnan(end):
            continue
        by_user.setdefault(job.user, []).append((start - job.arrival, end - job.arrival))
        waiting.append(start - job.arrival)
        execution.append(end - start)
        completion.append(end - job.arrival)
        slowdowns.append((end - start) / job.work if job.work > 0 else 1.0)
    slowdowns.sort()
    fleet, span, sums = outcome.setup.fleet, outcome.span or 1.0, outcome.sums
    return Figures(
        jobs=len(outcome.jobs),
        ended=len(waiting),
        makespan_s=outcome.span,
        waiting=_times(waiting),
        execution=_times(execution),
        completion=_times(completion),
        slowdown=_mean(slowdowns),
        slowdown_p95=percentile(slowdowns, 0.95),
        crashes=sum(outcome.crashes),
        refused=len(outcome.refused),
        over_limit=outcome.over_limit,
        energy_mj=sums.joules / 1e6,
        gpu_hours=sums.busy_seconds / 3600,
        memory=sums.mib_seconds / span / (fleet.memory_mib * fleet.gpus),
        active=sums.active_seconds / span / fleet.gpus,
        queue=sums.waiting_seconds / span,
        longest_queue=sums.most_waiting,
        lost_gpu_hours=sums.lost_seconds / _HOUR,
        users=tuple(_user(user, times) for user, times in sorted(by_user.items())),
    )


def _user(user: str, times: Sequence[Tuple[float, float]]) -> UserWaits:
    waits, completions = zip(*times)
    return UserWaits(user, len(times), _mean(waits), max(waits), _mean(completions))


def as_json(found: Figures) -> Dict[str, Any]:
    """The same for a machine: times as {"mean", "median", "p95"}."""
    plain = {
        name: value._asdict() if isinstance(value, Times) else value
        for name, value in found._asdict().items()
    }
    return {**plain, "users": [user._asdict() for user in found.users]}


class Spread(NamedTuple):
    """One figure over several seeds."""

    mean: float
    low: float
    high: float
    """The lowest and the highest of them."""


def spread(values: Sequence[float]) -> Spread:
    """Mean, lowest and highest."""
    return Spread(_mean(values), min(values), max(values))


def _times(values: List[float]) -> Times:
    values.sort()
    return Times(_mean(values), percentile(values, 0.5), percentile(values, 0.95))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
