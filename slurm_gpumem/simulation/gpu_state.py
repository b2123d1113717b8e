"""One job on GPUs and one GPU with jobs, as the simulation goes on."""

from __future__ import annotations

from typing import Dict, Iterable, List, Tuple

from slurm_gpumem.simulation.types import SimJob
from slurm_gpumem.utilization.interference import JobLoad, prepared


class Task:
    """A run of a job: one attempt, on the GPUs that it got."""

    __slots__ = (
        "gpus", "granted_mib", "job", "leaves", "left", "limit_end", "load", "side", "since", "slices",
        "speed", "speeds", "start", "trains", "use_mib", "user", "version", "whole",
    )  # fmt: skip

    def __init__(
        self, job: SimJob, gpus: Tuple[int, ...], granted_mib: int, now: float, *, whole: bool, slices: int
    ) -> None:
        self.job, self.gpus, self.granted_mib, self.whole = job, gpus, granted_mib, whole
        self.load: JobLoad = job.load
        self.side = prepared(job.load)
        self.user = job.user
        self.slices = slices
        """Of the memory that its MIG instance has."""
        self.use_mib = job.startup_mib
        self.trains = job.startup_s <= 0
        """Past its start-up."""
        self.left = job.work
        self.start = self.since = now
        self.speed = 0.0
        self.speeds: Dict[int, float] = {}
        """By GPU, of a job on several: it is as fast as on the slowest."""
        self.version = 0
        """Of the end that is expected; older ones in the list of events are out of date."""
        self.limit_end = 0.0
        self.leaves = False
        """Whether it has been told to make room."""

    def go_on(self, left: float, restart_s: float) -> None:
        """Begin from a checkpoint: its restart is the start-up of this run."""
        self.left = left + restart_s
        self.trains = restart_s <= 0

    def left_at(self, now: float) -> float:
        """Seconds of work that are left then, if nothing has changed since."""
        return max(0.0, self.left - (now - self.since) * self.speed)


class GpuState:
    """What is on a GPU and how busy it is."""

    __slots__ = (
        "active",
        "dram",
        "eligible",
        "granted_mib",
        "history",
        "index",
        "rank",
        "tasks",
        "used_mib",
        "version",
        "watts",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.tasks: List[Task] = []
        self.used_mib = 0
        self.granted_mib = 0
        self.active = 0.0
        self.dram = 0.0
        self.watts = 0.0
        self.version = 0
        """Of the expected change of `eligible`; older ones in the list of events are out of date."""
        self.eligible = True
        """Whether its activity lets another job in."""
        self.rank: Tuple[float, int] = (0.0, index)
        """Its place in the order of the policy."""
        self.history: List[Tuple[float, float]] = []
        """(since, activity), the latest last, as far back as the window reaches."""

    def mean_active(self, now: float, window: float) -> float:
        """Its activity over the last `window` seconds; before its first job it was idle."""
        if window <= 0 or not self.history:
            return self.active
        total, until = 0.0, now
        for since, active in reversed(self.history):
            begin = max(since, now - window)
            total += active * max(0.0, until - begin)
            until = begin
            if since <= now - window:
                break
        return total / window

    def note_activity(self, now: float, active: float, window: float) -> None:
        """Keep the change for the window's mean."""
        history = self.history
        if history and history[-1][0] == now:
            history[-1] = (now, active)
        elif not history or history[-1][1] != active:
            history.append((now, active))
        while len(history) > 1 and history[1][0] <= now - window:
            history.pop(0)

    def next_crossing(self, bound: float, now: float, window: float) -> float:
        """When the window's mean will pass `bound` if nothing changes; infinite where it will not."""
        # The mean moves in a straight line between the moments at which a past change leaves the window.
        moments = [since + window for since, _ in self.history if since + window > now]
        before, mean_before = now, self.mean_active(now, window)
        for moment in moments:
            mean = self.mean_active(moment, window)
            if (mean <= bound) != (mean_before <= bound):
                return before + (mean_before - bound) / (mean_before - mean) * (moment - before)
            before, mean_before = moment, mean
        return float("inf")


# MIG instances: which of them holds a job, and how fast it runs there.

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
