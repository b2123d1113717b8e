"""Watts of a GPU by its activity.

On the jobs that the project measured alone on an H200 (447, `models/lab/ground-truth`), power is a line of SM
activity and DRAM activity, 30 W off on average (of 700). Other GPUs get the same line, scaled to their limit.
"""

from __future__ import annotations

from typing import Mapping

IDLE, PER_ACTIVE, PER_DRAM = 102.6 / 700, 444.5 / 700, 188.0 / 700
"""Of the power limit."""
MAX_WATTS: Mapping[str, float] = {"a100": 400.0, "h100": 700.0, "h200": 700.0, "v100": 300.0}
"""Power limits as NVIDIA's data sheets have them, SXM form, by the first word of the GPU's name."""
USUAL_MAX_WATTS = 400.0


def max_watts(gpu_name: str) -> float:
    """The power limit of a GPU by its name in the table."""
    return MAX_WATTS.get(gpu_name.split("-")[0].lower(), USUAL_MAX_WATTS)


def watts(limit: float, active: float, dram: float) -> float:
    """At these shares of activity."""
    return limit * min(1.0, IDLE + PER_ACTIVE * active + PER_DRAM * dram)
