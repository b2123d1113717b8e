"""How many CPUs a job keeps busy: in the mean, and in nearly all of its busy time."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import Dict, Optional

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
