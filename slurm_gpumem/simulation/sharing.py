"""How fast the jobs of one GPU run, by the way in which it is shared."""

from __future__ import annotations

from typing import List, Sequence

from slurm_gpumem.utilization import sets

WAYS = {"mps": sets.PER_USER, "mps-shared": sets.SHARED, "timeslice": sets.TIMESLICE}


def speeds(mode: str, jobs: Sequence[sets.Sharer]) -> List[float]:
    """For each job on a GPU, its speed relative to having the GPU to itself."""
    return sets.speeds(WAYS.get(mode, sets.PER_USER), jobs)
