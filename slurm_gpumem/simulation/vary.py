"""The same trace as it might have been: what no two real runs have in common, drawn for a seed."""

from __future__ import annotations

from math import exp
from random import Random
from typing import List, Sequence

from slurm_gpumem.simulation.types import SimJob

WORK_NOISE = 0.05
"""Standard deviation of the logarithm of a job's time alone."""
ARRIVAL_NOISE_S = 30.0
STARTUP_NOISE = (0.5, 1.5)


def varied(jobs: Sequence[SimJob], seed: int) -> List[SimJob]:
    """Times alone a few percent off, arrivals up to half a minute later, start-up half as long or longer."""
    if seed == 0:
        return list(jobs)
    rng = Random(seed)
    return [
        job._replace(
            arrival=job.arrival + rng.uniform(0.0, ARRIVAL_NOISE_S),
            work=job.work * exp(rng.gauss(0.0, WORK_NOISE)),
            startup_s=job.startup_s * rng.uniform(*STARTUP_NOISE),
        )
        for job in jobs
    ]
