"""Who was on which GPU, when, with how much memory: the rows of the page's timeline.

The curves come from the jobs' records; a job without any is one block as high as its peak.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from slurm_gpumem.accounting.types import Curve, Device, GpuStay, JobRow
from slurm_gpumem.report.html.types import PageSource
from slurm_gpumem.report.html.usage import natural
from slurm_gpumem.text import clipped

MOST_GPUS = 12
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
        "shown": MOST_GPUS,
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
    top, rest = most[:MOST_GPUS], most[MOST_GPUS:]
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
