"""Jobs for tests of the simulator."""

from __future__ import annotations

from typing import Any

from lab.simulate.policies import POLICIES, timing_of
from slurm_gpumem.simulation.types import Fleet, Setup, SimJob
from slurm_gpumem.utilization.interference import JobLoad

LIGHT = JobLoad(0.2, 0.05, 0.05, 0.01)
HEAVY = JobLoad(0.9, 0.4, 0.4, 0.05)


def job(number: int, arrival: float = 0.0, work: float = 100.0, mib: int = 4096, **more: Any) -> SimJob:
    values = {"gpus": 1, "load": LIGHT, "user": "a", **more}
    return SimJob(number, arrival, work, peak_mib=mib, **values)


def setup(policy: str, gpus: int = 1, nodes: int = 1, memory_gib: int = 40, **more: Any) -> Setup:
    chosen = POLICIES[policy]
    values = {"mode": "exclusive" if chosen.whole else "mps", "timing": timing_of(chosen), **more}
    return Setup(Fleet(nodes, gpus, memory_gib * 1024), chosen, **values)
