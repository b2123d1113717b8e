"""Watts of a GPU by its activity.

On the jobs that the project measured alone on an H200, power is a line of SM activity and DRAM activity;
other GPUs get the same line, scaled to the limit of their kind. `lab.score.energy` fits it and
compares it with sets of jobs. It is meant for comparing ways to run the same work, not for a power bill.
"""

from __future__ import annotations

from typing import Mapping

from slurm_gpumem.simulation.types import Fleet

IDLE, PER_ACTIVE, PER_DRAM = 102.6 / 700, 444.5 / 700, 188.0 / 700
"""Of the power limit."""
MAX_WATTS: Mapping[str, float] = {"a100": 400.0, "h100": 700.0, "h200": 700.0, "v100": 300.0}
"""Power limits as NVIDIA's data sheets have them, SXM form, by the first word of the GPU's name."""
USUAL_MAX_WATTS = 400.0


def max_watts(gpu_name: str) -> float:
    """The power limit of a GPU by its name in the table."""
    return MAX_WATTS.get(gpu_name.split("-")[0].lower(), USUAL_MAX_WATTS)


def watts(fleet: Fleet, active: float, dram: float) -> float:
    """Of one GPU at these shares of activity.

    A limit below that of its kind cuts the line off; what the lower clocks cost in speed is not simulated.
    """
    limit = fleet.power_limit or fleet.max_watts
    return min(limit, fleet.max_watts * (IDLE + PER_ACTIVE * active + PER_DRAM * dram))
