"""How fast each job of a set runs, by the way in which the GPU is shared and by whose jobs they are.

Clients of one MPS server run side by side, at one server for all users busy ones with a lower priority. The
servers of different users take turns: kernels of two users never overlap, those of one user do. Without MPS
every process takes turns with every other, in the same way: what the sets of several users taught predicts
the sets without MPS better (0.04 of a job's speed) than coefficients that were fitted on these (0.07;
`python -m lab.score.command --utilization`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Dict, Hashable, List, Mapping, Optional, Protocol, Sequence

from slurm_gpumem.utilization.interference import JobLoad, Prepared, Priority, Turns, packaged, prepare

PER_USER, SHARED, TIMESLICE = "per-user", "shared", "timeslice"
WAYS = (PER_USER, SHARED, TIMESLICE)
"""A server for each user, one for all users, none."""
EQUAL = "equal"
"""One server for all users without priorities: what most measured sets had."""
SIDE, TURNS = "mps", "timeslice"
"""The coefficients of jobs side by side, and those that bound shares of jobs in turns."""


class Sharer(Protocol):
    """A job on a GPU, as far as the speeds there depend on it."""

    @property
    def user(self) -> str: ...
    @property
    def side(self) -> Prepared: ...


@lru_cache(maxsize=65_536)
def prepared(load: JobLoad) -> Prepared:
    """A load side by side with others."""
    return prepare(load, packaged().modes[SIDE])


def speeds(way: str, jobs: Sequence[Sharer], turns: Optional[Turns] = None) -> List[float]:
    """The share of its speed alone that each job keeps; `way` is one of WAYS, or EQUAL.

    `turns` of servers are the package's own where none are given.
    """
    if len(jobs) == 1:
        return [1.0]
    if way == TIMESLICE:
        return _in_turns(jobs, range(len(jobs)), turns or packaged().turns)
    if way == SHARED:
        return by_priority([job.side for job in jobs], packaged().priority)
    users = [job.user for job in jobs]
    if way == EQUAL or len(set(users)) == 1:
        return _together([job.side for job in jobs])
    return _in_turns(jobs, users, turns or packaged().turns)


def _together(jobs: Sequence[Prepared]) -> List[float]:
    total = sum([job.pressure for job in jobs])
    return [_speed(job, total - job.pressure) for job in jobs]


def by_priority(jobs: Sequence[Prepared], priority: Priority) -> List[float]:
    """Speeds at one server for all users."""
    busy = sum([job.pressure for job in jobs if job.busy])
    light = sum([job.pressure for job in jobs if not job.busy])
    on_busy, on_light = busy + priority.raised * light, light + priority.eased * busy
    return [_speed(job, (on_busy if job.busy else on_light) - job.pressure) for job in jobs]


def _in_turns(jobs: Sequence[Sharer], owners: Sequence[Hashable], turns: Turns) -> List[float]:
    """Side by side with jobs of the same owner, in turns with those of others."""
    side: Dict[Hashable, float] = {}
    idle: Dict[Hashable, float] = {}
    for job, owner in zip(jobs, owners):
        side[owner] = side.get(owner, 0.0) + job.side.pressure
        idle[owner] = idle.get(owner, 1.0) * (1 - min(job.side.active, 1.0))
    needs = {owner: 1 - share**turns.need for owner, share in idle.items()}
    granted = _fair(needs, turns.capacity)
    return [
        _speed(job.side, side[owner] - job.side.pressure) * granted[owner] / max(needs[owner], 1e-9)
        for job, owner in zip(jobs, owners)
    ]


def _fair(needs: Mapping[Hashable, float], capacity: float) -> Dict[Hashable, float]:
    """Time for each: what it needs where that is little, and an equal part of the rest for the others."""
    granted: Dict[Hashable, float] = {}
    left = capacity
    for owner in sorted(needs, key=lambda owner: needs[owner]):
        granted[owner] = min(needs[owner], left / (len(needs) - len(granted)))
        left -= granted[owner]
    return granted


def _speed(job: Prepared, others: float) -> float:
    # A sum less one of its parts may come out a hair under 0.
    return 1 / job.stretch(others) if others > 1e-9 else 1.0
