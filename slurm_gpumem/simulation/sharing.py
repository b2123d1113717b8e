"""How fast the jobs of one GPU run, by the way in which it is shared."""

from __future__ import annotations

from functools import lru_cache
from typing import AbstractSet, FrozenSet, List, Optional, Protocol, Sequence, Tuple

from slurm_gpumem.simulation.types import MIG
from slurm_gpumem.utilization import sets
from slurm_gpumem.utilization.interference import JobLoad

_SLICES, _COMPUTE = 8, 7
"""Of the memory and of the multiprocessors of a GPU (A100, H100, H200, B200)."""
_PROFILES = ((1, 1, (0, 1, 2, 3, 4, 5, 6)), (2, 2, (0, 2, 4)), (4, 3, (4, 0)), (8, 7, (0,)))
"""MIG: slices of the memory, slices of the multiprocessors, and the memory slices at which an instance may
begin (`nvidia-smi mig -lgipp`). Instances stay where they are while their jobs run."""
WAYS = {"mps": sets.PER_USER, "mps-shared": sets.SHARED, "timeslice": sets.TIMESLICE}


class Resident(sets.Sharer, Protocol):
    """A job on a GPU, as far as its speed depends on it."""

    load: JobLoad
    compute: float
    """Share of the multiprocessors that it may use (MIG)."""


def speeds(mode: str, jobs: Sequence[Resident]) -> List[float]:
    """For each job on a GPU, its speed relative to having the GPU to itself."""
    if mode == MIG:
        return [min(1.0, job.compute / max(job.load.active, 1e-9)) for job in jobs]
    return sets.speeds(WAYS.get(mode, sets.PER_USER), jobs)


def mig_request(asked_mib: int, memory_mib: int) -> int:
    """The memory of the smallest instance that holds the job; all of the GPU's where none does."""
    return next((mib for mib, _, _ in _instances(memory_mib) if asked_mib <= mib), memory_mib)


def mig_compute(granted_mib: int, memory_mib: int) -> float:
    """The share of the multiprocessors that an instance with this memory has."""
    return next((compute for mib, compute, _ in _instances(memory_mib) if granted_mib <= mib), 1.0)


def mig_place(granted_mib: int, memory_mib: int, taken: AbstractSet[int]) -> Optional[FrozenSet[int]]:
    """The memory slices of a further instance on a GPU; None where its layout has no place for it."""
    places = next((places for mib, _, places in _instances(memory_mib) if granted_mib <= mib), ())
    return next((place for place in places if not place & taken), None)


@lru_cache(maxsize=8)
def _instances(memory_mib: int) -> Tuple[Tuple[int, float, Tuple[FrozenSet[int], ...]], ...]:
    """By profile: its MiB, its share of the multiprocessors, and the slices that it may have."""
    return tuple(
        (
            memory_mib * slices // _SLICES,
            compute / _COMPUTE,
            tuple(frozenset(range(start, start + slices)) for start in starts),
        )
        for slices, compute, starts in _PROFILES
    )
