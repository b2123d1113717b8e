"""Which job starts next: as many at once as memory allows, in order, nobody starved."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Deque, Dict, List, Optional

from lab.collect.sample import Job

WINDOW = 64
"""How far ahead a job is looked for that fits while the first one waits."""
PATIENCE = 40
"""How many others may pass the first job before the GPU is kept free for it."""


@dataclass
class Scheduler:
    """The queue and the memory that its running jobs are expected to take."""

    pending: Deque[Job]
    slots: int
    shared_mib: float
    """Sum of expected memory that may run at once; a larger job runs alone."""
    device_mib: float
    """Never start a job that would not fit beside what the driver counts as used."""
    alone: Deque[Job] = field(default_factory=deque)
    _running: Dict[str, float] = field(default_factory=dict)
    _passed: int = 0
    _exclusive: bool = False

    @classmethod
    def of(cls, jobs: List[Job], slots: int, shared_mib: float, device_mib: float) -> Scheduler:
        """A scheduler over these jobs, in their order."""
        large = [job for job in jobs if job.expected_mib > shared_mib]
        small = [job for job in jobs if job.expected_mib <= shared_mib]
        return cls(deque(small), slots, shared_mib, device_mib, deque(large))

    @property
    def expected_mib(self) -> float:
        return sum(self._running.values())

    def take(self, used_mib: float) -> Optional[Job]:
        """The job to start now, if any; it counts as running until `ended`."""
        if self._exclusive or len(self._running) >= self.slots:
            return None
        for position, job in enumerate(list(self.pending)[:WINDOW]):
            if position and self._passed >= PATIENCE:
                return None
            if self._fits(job, used_mib):
                del self.pending[position]
                self._passed = self._passed + 1 if position else 0
                self._running[job.key] = job.expected_mib
                return job
        return None

    def take_alone(self) -> Optional[Job]:
        """A job that must have the GPU to itself, once nothing runs."""
        if self._running or not self.alone:
            return None
        job = self.alone.popleft()
        self._running[job.key] = job.expected_mib
        self._exclusive = True
        return job

    def ended(self, job: Job) -> None:
        """The job's memory is free again."""
        self._running.pop(job.key, None)
        self._exclusive = False

    def _fits(self, job: Job, used_mib: float) -> bool:
        if not self._running:
            return True
        within = self.expected_mib + job.expected_mib <= self.shared_mib
        return within and used_mib + job.expected_mib <= self.device_mib
