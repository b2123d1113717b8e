"""How fast the jobs of one GPU run, by the way in which it is shared."""

from __future__ import annotations

from typing import List, Protocol, Sequence

from slurm_gpumem.utilization import sets
from slurm_gpumem.utilization.interference import JobLoad

MIG_SLICES = ((1, 1), (2, 2), (4, 3), (8, 7))
"""Instances: eighths of the memory and sevenths of the multiprocessors."""
WAYS = {"mps": sets.PER_USER, "mps-shared": sets.SHARED, "timeslice": sets.TIMESLICE}


class Resident(sets.Sharer, Protocol):
    """A job on a GPU, as far as its speed depends on it."""

    load: JobLoad
    compute: float
    """Share of the multiprocessors that it may use (MIG)."""


def speeds(mode: str, jobs: Sequence[Resident]) -> List[float]:
    """For each job on a GPU, its speed relative to having the GPU to itself."""
    if mode == "mig":
        return [min(1.0, job.compute / max(job.load.active, 1e-9)) for job in jobs]
    return sets.speeds(WAYS.get(mode, sets.PER_USER), jobs)


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
