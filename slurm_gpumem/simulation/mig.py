"""MIG instances: which of them holds a job, and how fast it runs there."""

from __future__ import annotations

from typing import Iterable

from slurm_gpumem.utilization.interference import JobLoad

WHOLE_SLICES = 8
"""Slices of memory of a whole GPU."""
_COMPUTE = {1: 1 / 7, 2: 2 / 7, 4: 3 / 7, WHOLE_SLICES: 1.0}
"""Part of the multiprocessors, by slices of memory."""


def slices_for(asked_mib: int, memory_mib: int, sizes: Iterable[int] = (1, 2, 4)) -> int:
    """The smallest of these instances that holds the job; WHOLE_SLICES where none does."""
    return next((one for one in sorted(sizes) if asked_mib <= memory_mib * one // 8), WHOLE_SLICES)


def speed_in(slices: int, load: JobLoad) -> float:
    """A job's speed in an instance, relative to the whole GPU."""
    return min(1.0, _COMPUTE[slices] / max(load.active, 1e-9))
