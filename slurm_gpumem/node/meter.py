"""Activity, power and energy of the GPUs, read as seldom as that may be.

Process lists are looked at every second, since a peak between two looks is lost. These values are not
like that: energy and GPM's activity are counters, so that two readings some seconds apart hold
all that was between them. A reading is due every few seconds, and whenever other jobs are on the GPU than
at the last one, so that each stretch belongs to one set of jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, FrozenSet, Optional

from slurm_gpumem.node.metrics import GpuSample, MetricSource


@dataclass(frozen=True)
class Reading:
    """What a GPU did in the stretch that has just ended."""

    sample: GpuSample
    seconds: float
    energy_j: Optional[float]
    sharers: FrozenSet[int]
    """The jobs that held memory of the GPU in that stretch."""


@dataclass
class _State:
    at: float
    sharers: FrozenSet[int]
    sample: GpuSample


class Meter:
    """The last reading of every GPU."""

    def __init__(self, source: MetricSource, every_s: float) -> None:
        self._source = source
        self._every_s = every_s
        self._states: Dict[str, _State] = {}

    def read(self, uuid: str, active: FrozenSet[int], now: float) -> Optional[Reading]:
        """A reading when one is due, else None; raises SourceError like its source."""
        before = self._states.get(uuid)
        if before is not None and before.sharers == active and now - before.at < self._every_s:
            return None
        # When the GPU does not answer now, the stretch goes on until it does.
        sample = self._source.sample(uuid)
        self._states[uuid] = _State(now, active, sample)
        if before is None:
            return Reading(sample, 0.0, None, active)
        seconds = now - before.at
        return Reading(sample, seconds, _energy(before.sample, sample, seconds), before.sharers)

    def last(self, uuid: str) -> GpuSample:
        """The values of the last reading, for whoever looks at the screen."""
        state = self._states.get(uuid)
        return GpuSample() if state is None else state.sample


def _energy(before: GpuSample, now: GpuSample, seconds: float) -> Optional[float]:
    if now.energy_j is None:
        return None if now.power_w is None else now.power_w * seconds
    # The counter starts anew when the driver is loaded again.
    if before.energy_j is None or now.energy_j < before.energy_j:
        return None
    return now.energy_j - before.energy_j
