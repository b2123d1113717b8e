"""How fast the jobs of one GPU run, by the way in which it is shared."""

from __future__ import annotations

from typing import List, Protocol, Sequence

from slurm_gpumem.simulation.mig import speed_in
from slurm_gpumem.simulation.types import MIG
from slurm_gpumem.utilization import sets
from slurm_gpumem.utilization.interference import JobLoad

WAYS = {"mps": sets.PER_USER, "mps-shared": sets.SHARED, "timeslice": sets.TIMESLICE}


class Resident(sets.Sharer, Protocol):
    """A job on a GPU, as far as its speed depends on it."""

    load: JobLoad
    slices: int
    """Of the memory, under MIG."""


def speeds(mode: str, jobs: Sequence[Resident]) -> List[float]:
    """For each job on a GPU, its speed relative to having the GPU to itself."""
    if mode == MIG:
        return [speed_in(job.slices, job.load) for job in jobs]
    return sets.speeds(WAYS.get(mode, sets.PER_USER), jobs)
