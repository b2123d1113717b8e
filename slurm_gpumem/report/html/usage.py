"""What sharing did to the GPUs: time, memory and activity before and after, and each GPU over time."""

from __future__ import annotations

from array import array
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from slurm_gpumem.accounting.types import OBSERVED, SHARED, Curve, Device, GpuStay, JobRow
from slurm_gpumem.report.html.types import Change, PageSource
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


# Who was on which GPU, when, with how much memory: the rows of the page's timeline.
#
# The curves come from the jobs' records; a job without any is one block as high as its peak.

MOST_DRAWN = 12
"""Shown at first."""
MOST_GPUS_KEPT = 48
COLOURED_USERS = 8
"""Users that have a colour of their own; the others share one."""


def timeline(
    source: PageSource, recent: Sequence[JobRow], all_jobs: int, now: float
) -> Optional[Dict[str, Any]]:
    """The latest jobs' stays on their GPUs; None when no GPU is known of any."""
    stays = [(row, stay) for row in recent for stay in _stays(source, row)]
    if not stays:
        return None
    # Rows come by their end: from the first one's end on, nobody who was there is missing.
    complete = len(recent) == all_jobs
    first = min(stay.start for _, stay in stays) if complete else recent[0].end or recent[0].start
    last = max(_end(stay, now) for _, stay in stays)
    stays = [(row, stay) for row, stay in stays if _end(stay, now) > max(first, stay.start)]
    if not stays:
        return None
    devices = _devices(stays, now)
    users = _users([row for row, _ in stays])
    colour = {user: number for number, user in enumerate(users)}
    place = {_key(device): number for number, device in enumerate(devices)}
    return {
        "first": first,
        "last": last,
        "now": now,
        "complete": complete,
        "jobs": len({(row.cluster, row.job_id) for row, _ in stays}),
        "shown": MOST_DRAWN,
        "gpus": [
            [clipped(device.label, 40), device.memory_mib, clipped(device.name, 40)] for device in devices
        ],
        "all_gpus": len({_key(stay.device) for _, stay in stays}),
        "users": [clipped(user, 24) for user in users],
        "stays": [
            _stay(row, stay, place[_key(stay.device)], colour.get(row.user, -1), now)
            for row, stay in stays
            if _key(stay.device) in place
        ],
    }


def _stays(source: PageSource, row: JobRow) -> Iterator[GpuStay]:
    found = False
    if source.detail is not None:
        for run in source.detail(row).runs:
            for stay in run.stays:
                found = True
                yield stay
    if not found:
        for device in row.devices:
            yield GpuStay(device, row.start, row.end, peak_mib=row.peak_mib, mean_mib=row.mean_mib)


def _stay(row: JobRow, stay: GpuStay, gpu: int, colour: int, now: float) -> List[Any]:
    granted = row.granted_mib
    measured = stay.peak_mib if stay.peak_mib is not None else row.peak_mib
    return [
        gpu,
        round(stay.start, 1),
        round(_end(stay, now), 1),
        measured if measured is not None else granted or 0,
        granted,
        row.job_id,
        colour,
        clipped(row.user, 24),
        clipped(row.model or row.job_name, 32),
        _curve(stay.curve),
    ]


def _curve(curve: Optional[Curve]) -> Optional[List[Any]]:
    """[start, seconds per step, MiB of each step]; a step that was not measured is as the one before."""
    if curve is None or not curve.memory_mib or curve.step_s <= 0:
        return None
    held: List[int] = []
    for mib in curve.memory_mib:
        held.append(mib if mib is not None else held[-1] if held else 0)
    return [round(curve.start, 1), round(curve.step_s, 2), held]


def _devices(stays: Sequence[Tuple[JobRow, GpuStay]], now: float) -> List[Device]:
    """The GPUs that were shared most, in the order of their names; the first rows are shown at once."""
    busy: Dict[Tuple[str, str], List[Tuple[float, float]]] = {}
    known: Dict[Tuple[str, str], Device] = {}
    for _, stay in stays:
        known[_key(stay.device)] = stay.device
        busy.setdefault(_key(stay.device), []).append((stay.start, _end(stay, now)))
    shared = {key: _shared_s(times) for key, times in busy.items()}
    most = sorted(known, key=lambda key: (-shared[key][0], -shared[key][1], natural(known[key].label)))
    most = most[:MOST_GPUS_KEPT]
    top, rest = most[:MOST_DRAWN], most[MOST_DRAWN:]
    return [
        known[key] for part in (top, rest) for key in sorted(part, key=lambda key: natural(known[key].label))
    ]


def _shared_s(times: Sequence[Tuple[float, float]]) -> Tuple[float, float]:
    """Seconds that further jobs spent beside a first one, and seconds of all jobs."""
    alone = total = 0.0
    last = float("-inf")
    for start, end in sorted(times):
        total += end - start
        alone += max(0.0, end - max(start, last))
        last = max(last, end)
    return total - alone, total


def _users(rows: Sequence[JobRow]) -> List[str]:
    """The users with the most jobs there."""
    jobs: Dict[str, int] = {}
    for row in rows:
        jobs[row.user] = jobs.get(row.user, 0) + 1
    return sorted(jobs, key=lambda user: (-jobs[user], user))[:COLOURED_USERS]


def _key(device: Device) -> Tuple[str, str]:
    return (device.node, device.uuid)


def _end(stay: GpuStay, now: float) -> float:
    return now if stay.end is None else stay.end
