"""What one job has used so far: sums that need no history.

On a shared GPU, activity and energy belong to nobody alone. They are split evenly over the jobs that
hold memory of the GPU at that look; memory is each process's own and is not split. Energy while none of the
GPU's jobs holds memory is kept apart.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Set

from slurm_gpumem.formats.curve import Curve, format_curve, parse_curve
from slurm_gpumem.formats.job_record import BASES, MEASURED, FaultEvent, GpuFigures, Measurement
from slurm_gpumem.formats.live import GpuSample, LiveJob
from slurm_gpumem.node.sampler.gpu_readings import (
    IDLE_BELOW,
    LEAST_ALONE_S,
    TRAINS_FROM,
    Alone,
    Reading,
    speed_beside,
    weakest_basis,
)
from slurm_gpumem.node.sources.base import MEASURES

# A job's memory and activity over time, in a bounded number of steps however long it runs.
#
# Steps begin short; when there are too many, each two become one and a step is twice as long.

MOST_STEPS = 60
_FIRST_STEP_S = 1.0


class UsageCurve:
    """The most memory and the mean SM activity of every step since `start`."""

    def __init__(self, start: float, step_s: float = _FIRST_STEP_S) -> None:
        self.start = start
        self.step_s = step_s
        self._memory: List[Optional[float]] = []
        self._activity: List[float] = []
        self._seconds: List[float] = []

    def add_memory(self, now: float, mib: float) -> None:
        """One look at the memory, at a Unix time."""
        at = self._step(now)
        before = self._memory[at]
        self._memory[at] = mib if before is None or mib > before else before

    def add_activity(self, now: float, share: float, seconds: float) -> None:
        """The job's part of the SM activity in the `seconds` before `now`."""
        last = self._step(now)
        # A reading of some seconds belongs to all the steps that it reaches back over.
        steps = min(last + 1, max(1, round(seconds / self.step_s)))
        for at in range(last + 1 - steps, last + 1):
            self._activity[at] += share * seconds / steps
            self._seconds[at] += seconds / steps

    def text(self) -> str:
        """For the record."""
        return format_curve(
            Curve(
                self.start,
                self.step_s,
                tuple([None if value is None else round(value) for value in self._memory]),
                tuple(
                    [
                        total / seconds if seconds > 0 else None
                        for total, seconds in zip(self._activity, self._seconds)
                    ]
                ),
            )
        )

    def _step(self, now: float) -> int:
        at = int((now - self.start) / self.step_s)
        while at >= MOST_STEPS:
            self._halve()
            at = int((now - self.start) / self.step_s)
        # A clock that was set back does not go back on the curve.
        at = max(at, len(self._memory) - 1, 0)
        missing = at + 1 - len(self._memory)
        if missing > 0:
            self._memory += [None] * missing
            self._activity += [0.0] * missing
            self._seconds += [0.0] * missing
        return at

    def _halve(self) -> None:
        pairs = range(0, len(self._memory), 2)
        self._memory = [
            max((value for value in self._memory[at : at + 2] if value is not None), default=None)
            for at in pairs
        ]
        self._activity = [sum(self._activity[at : at + 2]) for at in pairs]
        self._seconds = [sum(self._seconds[at : at + 2]) for at in pairs]
        self.step_s *= 2


def curve_from(text: str) -> Optional[UsageCurve]:
    """Take up a curve that a sampler before us had begun; None when it is none."""
    before = parse_curve(text)
    if before is None:
        return None
    curve = UsageCurve(before.start, before.step_s)
    for at, (mib, share) in enumerate(zip(before.memory_mib[:MOST_STEPS], before.sm_active)):
        curve._step(curve.start + (at + 0.5) * curve.step_s)
        curve._memory[at] = mib
        if share is not None:
            curve._activity[at], curve._seconds[at] = share * curve.step_s, curve.step_s
    return curve


# How many CPUs a job keeps busy: in the mean, and in nearly all of its busy time.

_HIGH = 0.95
"""The part of its busy time in which a job needs no more than `high`."""
_BINS = 20
"""Of one CPU: use is kept to a twentieth of it."""
_IDLE_BELOW = 0.01
"""CPUs. A job that is stopped, suspended or asleep uses less, and shows nothing of what it needs."""
_LEAST_STRETCHES = 3
"""Of fewer stretches nothing is said: the job was hardly there."""


@dataclass
class CpuUse:
    """Sums over the stretches between two readings of a job's CPU time; no history is kept."""

    spent_s: float = 0.0
    seconds: float = 0.0
    at_least: Optional[float] = None
    """`high` as a sampler before this one found it."""
    _busy: Dict[int, float] = field(default_factory=dict)
    """Seconds by CPUs used, in bins."""
    _stretches: int = 0
    _counter: Optional[float] = None
    _at: float = 0.0
    _dipped: bool = False

    def add(self, counter: float, now: float) -> None:
        """The job's CPU seconds so far, at the monotonic time `now`."""
        before, self._counter = self._counter, counter
        if before is not None and counter < before:
            # The time of a process that ended is its parent's a moment later, or lost with an orphan.
            if not self._dipped:
                self._counter, self._dipped = before, True
                return
            before = None
        self._dipped = False
        seconds, self._at = now - self._at, now
        if before is None or seconds <= 0:
            return
        spent = counter - before
        self.spent_s += spent
        self.seconds += seconds
        self._stretches += 1
        if spent / seconds >= _IDLE_BELOW:
            used = ceil(spent / seconds * _BINS)
            self._busy[used] = self._busy.get(used, 0.0) + seconds

    def mean(self) -> Optional[float]:
        """CPUs over all of its time."""
        return round(self.spent_s / self.seconds, 2) if self._known else None

    def high(self) -> Optional[float]:
        """CPUs that were enough for nearly all of its busy time; 0 of a job that was never busy."""
        if not self._known:
            return self.at_least
        wanted, found = _HIGH * sum(self._busy.values()), 0.0
        for used in sorted(self._busy):
            wanted -= self._busy[used]
            found = used / _BINS
            if wanted <= 0:
                break
        return max(found, self.at_least or 0.0)

    @property
    def _known(self) -> bool:
        return self._stretches >= _LEAST_STRETCHES


_MEANS = tuple(measure.field for measure in MEASURES if measure.mean)
_LONGEST_STRETCH_S = 60.0
"""Of a longer time between two looks at the processes nobody knows who was there."""


class Stretch(NamedTuple):
    """What a GPU did between two readings, and who was there."""

    sample: GpuSample
    seconds: float
    energy_j: Optional[float]
    sharers: int
    """Jobs that held memory of the GPU."""
    allocated: int
    """Jobs that had the GPU, with or without memory."""
    training: FrozenSet[int] = frozenset()
    """Those of the sharers that had begun their steps."""
    speed: Optional[float] = 1.0
    """Of those: the part of their speed alone; None where it cannot be known."""
    basis: str = ""
    """Where that is known from."""
    strangers: bool = False
    """Whether processes of no known job may have been there: they may be a job's that hides them."""

    @property
    def idle(self) -> bool:
        """Whether the GPU was seen to do nothing."""
        seen = self.sample.sm_active
        seen = self.sample.utilization if seen is None else seen
        return seen is not None and seen < IDLE_BELOW

    def rested(self, *, held: bool) -> bool:
        """Whether a job certainly did nothing there; what is not known is not rest.

        Only SM counters at 0 say so of a GPU: a kernel a second shows in them, and not in its utilization.
        Of several jobs on a GPU that computes, nobody can say which did.
        """
        if self.seconds > _LONGEST_STRETCH_S:
            return False
        if self.sample.sm_active == 0 or held:
            return self.sample.sm_active == 0
        # It had no process there: what computed was another's, or too short to be seen.
        return not self.strangers and (bool(self.sharers) or self.sample.sm_active is None)

    @property
    def activity_known(self) -> bool:
        """Whether the GPU says what it does at all."""
        return self.sample.sm_active is not None or self.sample.utilization is not None


def stretch_of(
    reading: Reading,
    allocated: int,
    alone: Mapping[int, Optional[Alone]],
    *,
    turns: bool,
    strangers: bool = False,
) -> Stretch:
    """What a reading says of the jobs that were there up to now, by their activities alone."""
    training = {job_id: alone.get(job_id) for job_id in reading.training}
    return Stretch(
        reading.sample,
        reading.seconds,
        reading.energy_j,
        len(reading.sharers),
        allocated,
        reading.training,
        speed_beside(training, reading.sample.sm_active, turns=turns),
        weakest_basis(training),
        strangers,
    )


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
    idle_energy_j: Optional[float] = None
    slowed_s: Optional[float] = None
    unclear_s: float = 0.0
    alone_by: str = ""
    alone: _Mean = field(default_factory=_Mean)
    """Its SM activity with the GPU to itself ..."""
    alone_mib: float = 0.0
    """... since it held this much."""
    idle_s: Optional[float] = None
    rest_s: float = 0.0
    """Seconds on end, up to now, in which it certainly did nothing there."""
    processes: int = 0
    curve: Optional[UsageCurve] = None
    number: Optional[int] = None
    name: str = ""
    memory_mib: Optional[float] = None
    """Number, name and memory of the GPU or MIG instance itself."""
    instance: str = ""
    _rested_mib: Optional[float] = 0.0

    def add_memory(
        self, mib: Optional[float], processes: int, seconds: float, now: Optional[float] = None
    ) -> None:
        """One look at the process list, at the Unix time `now`."""
        now = time.time() if now is None else now
        self.now_mib, self.processes = mib, processes
        if self.curve is None:
            self.curve = UsageCurve(now)
        if mib != self._rested_mib:  # loading is work, too
            self._rested_mib, self.rest_s = mib, 0.0
        if mib is not None:
            if self.peak_mib is None or mib > self.peak_mib:
                self.peak_mib = mib
                if self.alone_mib < TRAINS_FROM * mib:
                    # Of a job without an estimate it shows only now that it had not begun to train.
                    self.alone, self.alone_mib = _Mean(), mib
            self.memory.add(mib, seconds)
            self.curve.add_memory(now, mib)

    def add_activity(self, seen: Stretch, job_id: int, *, held: bool, now: Optional[float] = None) -> None:
        """One reading; `held`: the job had memory of the GPU in that time."""
        sample, seconds = seen.sample, seen.seconds
        for name, mean in self.whole.items():
            mean.add(getattr(sample, name), seconds)
        self.rest_s = self.rest_s + seconds if seen.rested(held=held) else 0.0
        if not held:
            # Its run goes on: a mean over the moments with memory alone would say more than it did.
            self.share.add(None if sample.sm_active is None else 0.0, seconds)
            if not seen.sharers and seen.allocated and seen.energy_j is not None:
                self.idle_energy_j = (self.idle_energy_j or 0.0) + seen.energy_j / seen.allocated
            return
        if sample.sm_active is not None:
            self.share.add(sample.sm_active / seen.sharers, seconds)
            if self.curve is not None and seconds > 0:
                self.curve.add_activity(now or time.time(), sample.sm_active / seen.sharers, seconds)
        if seen.energy_j is not None:
            self.energy_j = (self.energy_j or 0.0) + seen.energy_j / seen.sharers
        if seen.idle:
            self.idle_s = (self.idle_s or 0.0) + seconds
        if job_id in seen.training:
            self._add_speed(seen)

    def _add_speed(self, seen: Stretch) -> None:
        if seen.sharers == 1:
            self.alone.add(seen.sample.sm_active, seen.seconds)
        if seen.speed is None:
            self.unclear_s += seen.seconds
            return
        self.slowed_s = (self.slowed_s or 0.0) + (1 - seen.speed) * seen.seconds
        self.alone_by = max((self.alone_by, seen.basis), key=("", *BASES).index)

    def measured_alone(self) -> Optional[Alone]:
        """Its activity with the GPU to itself, once it had that for long enough."""
        if self.alone.weight < LEAST_ALONE_S:
            return None
        return Alone(self.alone.total / self.alone.weight, MEASURED)

    def figures(self) -> GpuFigures:
        """For the record."""
        means: Dict[str, Any] = {f"gpu_{name}": mean.value(4) for name, mean in self.whole.items()}
        return GpuFigures(
            number=self.number,
            name=self.name,
            memory_mib=_rounded(self.memory_mib),
            instance=self.instance,
            peak_mib=_rounded(self.peak_mib),
            mean_mib=self.memory.value(1),
            energy_j=_rounded(self.energy_j),
            sm_active_share=self.share.value(4),
            slowed_s=_rounded(self.slowed_s),
            unclear_s=_rounded(self.unclear_s) if self.unclear_s else None,
            alone_by=self.alone_by,
            alone_sm=self.alone.value(4) if self.measured_alone() else None,
            idle_s=_rounded(self.idle_s),
            idle_energy_j=_rounded(self.idle_energy_j),
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
    instance_mib: Optional[int] = None
    """Memory of its smallest MIG instance."""
    samples: int = 0
    gpus: Dict[str, GpuUsage] = field(default_factory=dict)
    companions: Set[int] = field(default_factory=set)
    events: List[FaultEvent] = field(default_factory=list)
    notes: Set[str] = field(default_factory=set)
    array_job: Optional[int] = None
    array_task: Optional[int] = None
    cpus: Optional[int] = None
    """Its CPUs on this node, as Slurm says."""
    cpu: CpuUse = field(default_factory=CpuUse)

    def peak_mib(self) -> Optional[float]:
        """The most on any one GPU: shards are counted per GPU."""
        return max((gpu.peak_mib for gpu in self.gpus.values() if gpu.peak_mib is not None), default=None)

    def name_of(self, job_id: int) -> str:
        """As scontrol and scancel take it: an array's last task has the number of the whole array."""
        return str(job_id) if self.array_job is None else f"{self.array_job}_{self.array_task}"

    def note_instance(self, mib: Optional[float]) -> None:
        """It has a MIG instance of that memory: the hardware's own limit."""
        if mib is not None:
            self.instance_mib = min(int(mib), self.instance_mib or int(mib))

    def rest_s(self, uuids: Sequence[str]) -> float:
        """How long it has certainly done nothing on any of these, its GPUs, or another where it was met."""
        found = [gpu.rest_s for gpu in self.gpus.values()]
        return min(found) if found and self.gpus.keys() >= set(uuids) else 0.0

    def begin_rest(self) -> None:
        """Count its rest from now on: it was suspended, or just asked for."""
        for gpu in self.gpus.values():
            gpu.rest_s = 0.0

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
            array_job=self.array_job,
            array_task=self.array_task,
            cpus=self.cpus,
            cpus_mean=self.cpu.mean(),
            cpus_high=self.cpu.high(),
        )


def usage_from(live: LiveJob) -> JobUsage:
    """Continue from what an earlier sampler measured: peaks, notes and events are kept, means start again."""
    before = live.measured
    usage = JobUsage(
        restarts=live.restarts,
        shards=before.shards,
        verified=before.shards_verified,
        limit_mib=before.limit_mib,
        instance_mib=None if before.shards else before.limit_mib,
        companions=set(before.met),
        events=list(before.events),
        array_job=before.array_job,
        array_task=before.array_task,
        cpus=before.cpus,
        cpu=CpuUse(at_least=before.cpus_high),
        notes={*live.notes, "sampler was restarted; means are of its last run"},
    )
    for uuid, figures in before.gpu.items():
        usage.gpus[uuid] = GpuUsage(
            peak_mib=figures.peak_mib,
            energy_j=figures.energy_j,
            idle_energy_j=figures.idle_energy_j,
            slowed_s=figures.slowed_s,
            unclear_s=figures.unclear_s or 0.0,
            alone_by=figures.alone_by if figures.alone_by in BASES else "",
            idle_s=figures.idle_s,
            instance=figures.instance,
            curve=curve_from(figures.curve),
        )
    return usage


def _rounded(value: Optional[float]) -> Optional[float]:
    return None if value is None else round(value, 1)
