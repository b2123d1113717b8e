"""A job's memory and activity over time, in a bounded number of steps however long it runs.

Steps begin short; when there are too many, each two become one and a step is twice as long.
"""

from __future__ import annotations

from typing import List, Optional

from slurm_gpumem.formats.curve import Curve, format_curve, parse_curve

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
