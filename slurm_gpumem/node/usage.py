"""What one job has used so far: sums that need no history.

On a shared GPU, activity and energy belong to nobody alone. They are split evenly over the jobs that
hold memory of the GPU at that look; memory is each process's own and is not split.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Set

from slurm_gpumem.formats.job_record import FaultEvent, GpuFigures, Measurement
from slurm_gpumem.formats.live import GpuSample, LiveJob
from slurm_gpumem.node.curve import UsageCurve, curve_from
from slurm_gpumem.node.sources.base import MEASURES

_MEANS = tuple(measure.field for measure in MEASURES if measure.mean)


@dataclass
class _Mean:
    total: float = 0.0
    weight: float = 0.0

    def add(self, value: Optional[float], weight: float) -> None:
        if value is not None:
            self.total += value * weight
            self.weight += weight

    def value(self, digits: int) -> Optional[float]:
        return round(self.total / self.weight, digits) if self.weight else None


@dataclass
class GpuUsage:
    """One job on one GPU."""

    now_mib: Optional[float] = None
    peak_mib: Optional[float] = None
    memory: _Mean = field(default_factory=_Mean)
    whole: Dict[str, _Mean] = field(default_factory=lambda: {name: _Mean() for name in _MEANS})
    """Of the whole GPU while the job was on it."""
    share: _Mean = field(default_factory=_Mean)
    """The job's even part of the SM activity."""
    energy_j: Optional[float] = None
    processes: int = 0
    curve: Optional[UsageCurve] = None
    number: Optional[int] = None
    name: str = ""
    memory_mib: Optional[float] = None
    """Number, name and memory of the GPU itself."""

    def add_memory(
        self, mib: Optional[float], processes: int, seconds: float, now: Optional[float] = None
    ) -> None:
        """One look at the process list, at the Unix time `now`."""
        now = time.time() if now is None else now
        self.now_mib, self.processes = mib, processes
        if self.curve is None:
            self.curve = UsageCurve(now)
        if mib is not None:
            if self.peak_mib is None or mib > self.peak_mib:
                self.peak_mib = mib
            self.memory.add(mib, seconds)
            self.curve.add_memory(now, mib)

    def add_activity(
        self,
        sample: GpuSample,
        seconds: float,
        *,
        sharers: int,
        energy_j: Optional[float],
        now: Optional[float] = None,
    ) -> None:
        """One reading; `sharers` had memory of the GPU in that time, this job among them, else it is 0."""
        for name, mean in self.whole.items():
            mean.add(getattr(sample, name), seconds)
        if sharers:
            if sample.sm_active is not None:
                self.share.add(sample.sm_active / sharers, seconds)
                if self.curve is not None and seconds > 0:
                    self.curve.add_activity(now or time.time(), sample.sm_active / sharers, seconds)
            if energy_j is not None:
                self.energy_j = (self.energy_j or 0.0) + energy_j / sharers

    def figures(self) -> GpuFigures:
        """For the record."""
        means: Dict[str, Any] = {f"gpu_{name}": mean.value(4) for name, mean in self.whole.items()}
        return GpuFigures(
            number=self.number,
            name=self.name,
            memory_mib=_rounded(self.memory_mib),
            peak_mib=_rounded(self.peak_mib),
            mean_mib=self.memory.value(1),
            energy_j=_rounded(self.energy_j),
            sm_active_share=self.share.value(4),
            curve=self.curve.text() if self.curve else "",
            **means,
        )


@dataclass
class JobUsage:
    """One job on all its GPUs."""

    restarts: int
    shards: Optional[int] = None
    verified: bool = False
    limit_mib: Optional[int] = None
    samples: int = 0
    gpus: Dict[str, GpuUsage] = field(default_factory=dict)
    companions: Set[int] = field(default_factory=set)
    events: List[FaultEvent] = field(default_factory=list)
    notes: Set[str] = field(default_factory=set)

    def peak_mib(self) -> Optional[float]:
        """The most on any one GPU: shards are counted per GPU."""
        return max((gpu.peak_mib for gpu in self.gpus.values() if gpu.peak_mib is not None), default=None)

    def processes(self) -> int:
        """Its GPU processes at the last look."""
        return sum(gpu.processes for gpu in self.gpus.values())

    def note_peak(self, uuid: str, mib: float) -> None:
        """A peak that somebody else measured, e.g. the driver's accounting."""
        gpu = self.gpus.setdefault(uuid, GpuUsage())
        gpu.peak_mib = max(mib, gpu.peak_mib or 0.0)

    def now_mib(self) -> Mapping[str, Optional[float]]:
        """What it held at the last look, by GPU."""
        return {uuid: _rounded(gpu.now_mib) for uuid, gpu in self.gpus.items()}

    def measured(self) -> Measurement:
        """The sampler's part of the record."""
        energies = [gpu.energy_j for gpu in self.gpus.values() if gpu.energy_j is not None]
        means = [mean for gpu in self.gpus.values() if (mean := gpu.memory.value(1)) is not None]
        return Measurement(
            shards=self.shards,
            shards_verified=self.verified,
            limit_mib=self.limit_mib,
            peak_mib=_rounded(self.peak_mib()),
            mean_mib=max(means, default=None),
            energy_j=_rounded(sum(energies)) if energies else None,
            gpu={uuid: gpu.figures() for uuid, gpu in self.gpus.items()},
            met=tuple(sorted(self.companions)),
            samples=self.samples,
            events=tuple(self.events),
        )


def usage_from(live: LiveJob) -> JobUsage:
    """Continue from what an earlier sampler measured: peaks, notes and events are kept, means start again."""
    before = live.measured
    usage = JobUsage(
        restarts=live.restarts,
        shards=before.shards,
        verified=before.shards_verified,
        limit_mib=before.limit_mib,
        companions=set(before.met),
        events=list(before.events),
        notes={*live.notes, "sampler was restarted; means are of its last run"},
    )
    for uuid, figures in before.gpu.items():
        usage.gpus[uuid] = GpuUsage(
            peak_mib=figures.peak_mib, energy_j=figures.energy_j, curve=curve_from(figures.curve)
        )
    return usage


def _rounded(value: Optional[float]) -> Optional[float]:
    return None if value is None else round(value, 1)
