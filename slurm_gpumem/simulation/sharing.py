"""How fast the jobs of one GPU run, by the way in which it is shared."""

from __future__ import annotations

from functools import lru_cache
from typing import Dict, List, Protocol, Sequence, Tuple

from slurm_gpumem.utilization.interference import JobLoad, Prepared, packaged, prepare

MIG_SLICES = ((1, 1), (2, 2), (4, 3), (8, 7))
"""Instances: eighths of the memory and sevenths of the multiprocessors."""


class Resident(Protocol):
    """A job on a GPU, as far as its speed depends on it."""

    load: JobLoad
    user: str
    compute: float
    """Share of the multiprocessors that it may use (MIG)."""
    side: Prepared
    """Side by side with others, under one MPS server,"""
    turns: Prepared
    """... and in turns."""


@lru_cache(maxsize=65_536)
def prepared(load: JobLoad) -> Tuple[Prepared, Prepared]:
    """A load side by side and in turns."""
    modes = packaged().modes
    return prepare(load, modes["mps"]), prepare(load, modes["timeslice"])


def speeds(mode: str, jobs: Sequence[Resident]) -> List[float]:
    """For each job on a GPU, its speed relative to having the GPU to itself."""
    if mode == "mig":
        return [min(1.0, job.compute / max(job.load.active, 1e-9)) for job in jobs]
    if len(jobs) == 1:
        return [1.0]
    if mode == "timeslice":
        return _together([job.turns for job in jobs])
    user = jobs[0].user
    if mode == "mps-shared" or all(job.user == user for job in jobs):
        return _together([job.side for job in jobs])
    return _servers_in_turns(jobs)


def _together(jobs: Sequence[Prepared]) -> List[float]:
    total = sum([job.pressure for job in jobs])
    return [_speed(job, total - job.pressure) for job in jobs]


def _servers_in_turns(jobs: Sequence[Resident]) -> List[float]:
    """One MPS server for each user: side by side within one, in turns between them."""
    side: Dict[str, float] = {}
    turns: Dict[str, float] = {}
    hardest: Dict[str, float] = {}
    for job in jobs:
        user, by_turn = job.user, job.turns.pressure
        side[user] = side.get(user, 0.0) + job.side.pressure
        turns[user] = turns.get(user, 0.0) + by_turn
        hardest[user] = max(hardest.get(user, 0.0), by_turn)
    # A server's clients run side by side, so together they take no more turns than one busy process.
    for user, total in turns.items():
        turns[user] = min(total, max(1.0, hardest[user]))
    all_turns = sum(turns.values())
    return [
        _speed(job.side, side[job.user] - job.side.pressure) * _speed(job.turns, all_turns - turns[job.user])
        for job in jobs
    ]


def _speed(job: Prepared, others: float) -> float:
    # A sum less one of its parts may come out a hair under 0.
    return 1 / job.stretch(others) if others > 1e-9 else 1.0


def mig_request(asked_mib: int, memory_mib: int) -> int:
    """The part of a GPU, in MiB, that the smallest instance which holds the job takes from others.

    Memory comes in eighths and multiprocessors in sevenths: seven of the smallest fill a GPU, not eight.
    """
    for eighths, sevenths in MIG_SLICES:
        if asked_mib <= memory_mib * eighths // 8:
            return _taken(eighths, sevenths, memory_mib)
    return memory_mib


def mig_compute(taken_mib: int, memory_mib: int) -> float:
    """The share of the multiprocessors that goes with such a part."""
    for eighths, sevenths in MIG_SLICES:
        if taken_mib <= _taken(eighths, sevenths, memory_mib):
            return sevenths / 7
    return 1.0


def _taken(eighths: int, sevenths: int, memory_mib: int) -> int:
    return max(memory_mib * eighths // 8, memory_mib * sevenths // 7)
