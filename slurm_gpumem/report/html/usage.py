"""What sharing did to the GPUs: time, memory and activity before and after."""

from __future__ import annotations

from typing import Any, Optional, Tuple

from slurm_gpumem.accounting.types import OBSERVED, SHARED, JobRow
from slurm_gpumem.report.html.types import Change


class _Sums:
    def __init__(self) -> None:
        self.jobs = 0
        self.before_s = self.after_s = 0.0
        self.memory_s = self.memory_before_s = self.memory_after_s = 0.0
        self.sm_s = self.sm_before_s = self.sm_after_s = 0.0

    def add(self, row: JobRow, before_s: float, after_s: float) -> None:
        self.jobs += 1
        self.before_s += before_s
        self.after_s += after_s
        used = row.mean_mib if row.mean_mib is not None else row.peak_mib
        if used is not None and row.gpu_memory_mib:
            self.memory_s += used / row.gpu_memory_mib * before_s
            self.memory_before_s += before_s
            self.memory_after_s += after_s
        if row.sm_share is not None:
            self.sm_s += row.sm_share * before_s
            self.sm_before_s += before_s
            self.sm_after_s += after_s

    def change(self, title: str, note: str) -> Change:
        return Change(
            title,
            note,
            self.jobs,
            self.before_s,
            self.after_s,
            _pair(self.memory_s, self.memory_before_s, self.memory_after_s),
            _pair(self.sm_s, self.sm_before_s, self.sm_after_s),
        )


def _pair(work: float, before_s: float, after_s: float) -> Optional[Tuple[float, float]]:
    # The same work in fewer GPU-hours. Rounding of split times could lead past the whole.
    return (min(1.0, work / before_s), min(1.0, work / after_s)) if before_s and after_s else None


class BeforeAfter:
    """The same jobs with a GPU each, and sharing."""

    def __init__(self) -> None:
        self._shared = _Sums()
        self._observed = _Sums()

    def add(self, row: JobRow) -> None:
        """Count one job that has ended; one that had a GPU alone by its own wish is in neither."""
        if not row.gpu_s or row.end is None:
            return
        if row.sharing == SHARED and row.used_s and row.alone_s:
            self._shared.add(row, row.alone_s, row.used_s)
        elif row.sharing == OBSERVED and row.would_s:
            self._observed.add(row, row.gpu_s, row.would_s)

    def result(self) -> Tuple[Change, ...]:
        """What was measured, and what is computed for jobs that had a GPU alone."""
        found = []
        if self._shared.jobs:
            note = (
                "Before: every job with a GPU of its own, as long as it would have run alone by its "
                "GPUs' activity; jobs for which that is not known are left out. After: as measured."
            )
            found.append(self._shared.change("Shared jobs, as measured", note))
        if self._observed.jobs:
            note = "Before: as measured, a GPU each. After: computed from their requests; nothing was shared."
            found.append(self._observed.change("Jobs that had a GPU alone: what sharing would do", note))
        return tuple(found)


def natural(text: str) -> Tuple[Any, ...]:
    """Sorts n2 before n10."""
    import re

    return tuple(
        (int(word), "") if word.isdigit() else (-1, word) for word in re.split(r"(\d+)", text) if word
    )
