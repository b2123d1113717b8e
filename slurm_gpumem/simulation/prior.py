"""What a job is taken for where nobody measured its GPU memory and activity: an assumption, with its range.

Three assumptions are made, wide apart on purpose, and what follows from a simulation is given as a range over
them. None of them is a measurement: a site that records gres/gpumem and gres/gpuutil needs none.

    low     half of the jobs use up to 10 % of their GPU's memory; mean SM activity 15 %
    middle  half of the jobs use up to 25 %; mean SM activity 35 %
    high    half of the jobs use up to 50 %; mean SM activity 55 %

Sizes are drawn log-normally, so that a tenth of the jobs use at least 3.6 times the median. Activities are
drawn evenly between none and twice the mean.
"""

from __future__ import annotations

from math import exp
from random import Random
from typing import Mapping, NamedTuple

from slurm_gpumem.utilization.interference import JobLoad

SPREAD = 1.0
"""Of the logarithm of the memory's share."""
_LEAST_MIB = 600
"""A CUDA context with nothing in it."""
_OCCUPANCY, _DRAM = 0.4, 0.4
"""For each active multiprocessor, as in the jobs that the project measured."""
_STEP_S = 0.03


class Prior(NamedTuple):
    """One guess about jobs of which nothing was measured."""

    share: float
    """Of the GPU's memory: the median."""
    active: float
    """SM activity: the mean."""


PRIORS: Mapping[str, Prior] = {"low": Prior(0.1, 0.15), "middle": Prior(0.25, 0.35), "high": Prior(0.5, 0.55)}


def draw_memory(prior: Prior, gpu_mib: int, rng: Random) -> int:
    """MiB of one job."""
    return max(_LEAST_MIB, min(gpu_mib, int(gpu_mib * prior.share * exp(rng.gauss(0.0, SPREAD)))))


def draw_load(prior: Prior, rng: Random) -> JobLoad:
    """Activity of one job: anything from none to twice the mean, in steps of a percent."""
    return load_at(rng.uniform(0.0, min(1.0, 2 * prior.active)))


def load_at(active: float) -> JobLoad:
    """A usual job of that activity."""
    active = round(max(0.01, min(1.0, active)), 2)
    return JobLoad(active, round(active * _OCCUPANCY, 3), round(active * _DRAM, 3), _STEP_S)
