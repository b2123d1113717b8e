"""What sharing did to the GPUs: time, memory and activity before and after, and each GPU over time."""

from __future__ import annotations

from array import array
from typing import Any, Dict, List, Optional, Tuple

from slurm_gpumem.accounting.types import OBSERVED, SHARED, Device, JobRow
from slurm_gpumem.report.html.types import Change
from slurm_gpumem.text import clipped

MOST_GPUS = 96
MOST_STEPS = 160
LEVELS = 9
"""Steps of the occupancy picture's colour, besides "empty"."""


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


class Occupancy:
    """Memory in use on every GPU over the whole period, in some steps of time."""

    def __init__(self) -> None:
        self._devices: Dict[Tuple[str, str], int] = {}
        self._known: List[Device] = []
        self._device = array("l")
        self._start = array("d")
        self._end = array("d")
        self._mib = array("d")

    def add(self, row: JobRow, now: float) -> None:
        """Note where the job was."""
        end = now if row.end is None else row.end
        mib = row.mean_mib if row.mean_mib is not None else row.peak_mib
        if mib is None or not end > row.start:
            return
        for device in row.devices:
            key = (device.node, device.uuid)
            number = self._devices.setdefault(key, len(self._devices))
            if number == len(self._known):
                self._known.append(device)
            self._device.append(number)
            self._start.append(row.start)
            self._end.append(end)
            self._mib.append(mib)

    @property
    def gpus(self) -> int:
        """How many GPUs had jobs."""
        return len(self._known)

    def result(self, first: float, last: float) -> Dict[str, Any]:
        """For the page: a digit for each step of each GPU, "0" empty, "9" full."""
        steps = MOST_STEPS
        width = max((last - first) / steps, 1e-9)
        sums = [array("d", bytes(8 * steps)) for _ in self._known]
        for number, start, end, mib in zip(self._device, self._start, self._end, self._mib):
            _spread(sums[number], (start - first) / width, (end - first) / width, mib)
        taken = sorted(range(len(sums)), key=lambda number: -sum(sums[number]))[:MOST_GPUS]
        shown = sorted(taken, key=lambda number: natural(self._known[number].label))
        return {
            "first": first,
            "last": last,
            "gpus": len(self._known),
            "rows": [self._row(self._known[number], sums[number]) for number in shown],
        }

    def _row(self, device: Device, sums: array[float]) -> List[str]:
        full = device.memory_mib or max(max(sums), 1.0)
        digits = (0 if part <= 0 else min(LEVELS, max(1, round(part / full * LEVELS))) for part in sums)
        return [clipped(device.label, 40), "".join(map(str, digits))]


def _spread(sums: array[float], start: float, end: float, mib: float) -> None:
    """Add the job's memory to the steps that it covers, in part where it covers a part."""
    for step in range(max(0, int(start)), min(len(sums) - 1, int(end)) + 1):
        part = min(end, step + 1) - max(start, step)
        if part > 0:
            sums[step] += mib * part


def natural(text: str) -> Tuple[Any, ...]:
    """Sorts n2 before n10."""
    import re

    return tuple(
        (int(word), "") if word.isdigit() else (-1, word) for word in re.split(r"(\d+)", text) if word
    )
