"""How fast each job of a set runs, by the way in which the GPU is shared and by whose jobs they are.

Clients of one MPS server run side by side. Without MPS processes take turns, and so do the servers of
different users: kernels of two users never overlap, those of one user do.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Dict, List, Mapping, NamedTuple, Optional, Protocol, Sequence, Tuple

from slurm_gpumem.utilization.interference import JobLoad, Prepared, Turns, packaged, prepare

PER_USER, SHARED, TIMESLICE = "per-user", "shared", "timeslice"
WAYS = (PER_USER, SHARED, TIMESLICE)
"""A server for each user, one for all users, none."""
SIDE, TURNS = "mps", "timeslice"
"""The coefficients of jobs side by side and of jobs in turns (interference.MODES)."""


class Sharer(Protocol):
    """A job on a GPU, as far as the speeds there depend on it."""

    @property
    def user(self) -> str: ...
    @property
    def side(self) -> Prepared: ...
    @property
    def turns(self) -> Prepared: ...


class SetJob(NamedTuple):
    """A job of a set."""

    user: str
    side: Prepared
    turns: Prepared


@lru_cache(maxsize=65_536)
def prepared(load: JobLoad) -> Tuple[Prepared, Prepared]:
    """A load side by side and in turns."""
    modes = packaged().modes
    return prepare(load, modes[SIDE]), prepare(load, modes[TURNS])


def predicted_speeds(way: str, loads: Sequence[JobLoad], users: Sequence[str]) -> List[float]:
    """The share of its speed alone that each of these users' jobs keeps; `way` is one of WAYS."""
    return speeds(way, [SetJob(user, *prepared(load)) for load, user in zip(loads, users)])


def speeds(way: str, jobs: Sequence[Sharer], turns: Optional[Turns] = None) -> List[float]:
    """The same for jobs that are prepared; `turns` of servers are the package's own where none are given."""
    if len(jobs) == 1:
        return [1.0]
    if way == TIMESLICE:
        return _together([job.turns for job in jobs])
    user = jobs[0].user
    if way == SHARED or all(job.user == user for job in jobs):
        return _together([job.side for job in jobs])
    return _servers_in_turns(jobs, turns or packaged().turns)


def _together(jobs: Sequence[Prepared]) -> List[float]:
    total = sum([job.pressure for job in jobs])
    return [_speed(job, total - job.pressure) for job in jobs]


def _servers_in_turns(jobs: Sequence[Sharer], turns: Turns) -> List[float]:
    """One MPS server for each user: side by side within one, in turns between them."""
    side: Dict[str, float] = {}
    idle: Dict[str, float] = {}
    for job in jobs:
        side[job.user] = side.get(job.user, 0.0) + job.side.pressure
        idle[job.user] = idle.get(job.user, 1.0) * (1 - min(job.side.active, 1.0))
    needs = {user: 1 - share**turns.need for user, share in idle.items()}
    granted = _fair(needs, turns.capacity)
    return [
        _speed(job.side, side[job.user] - job.side.pressure) * granted[job.user] / max(needs[job.user], 1e-9)
        for job in jobs
    ]


def _fair(needs: Mapping[str, float], capacity: float) -> Dict[str, float]:
    """Time for each: what it needs where that is little, and an equal part of the rest for the others."""
    granted: Dict[str, float] = {}
    left = capacity
    for user in sorted(needs, key=lambda user: needs[user]):
        granted[user] = min(needs[user], left / (len(needs) - len(granted)))
        left -= granted[user]
    return granted


def _speed(job: Prepared, others: float) -> float:
    # A sum less one of its parts may come out a hair under 0.
    return 1 / job.stretch(others) if others > 1e-9 else 1.0
