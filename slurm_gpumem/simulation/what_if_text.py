"""The answer of `gpumem what-if` on one screen, and for machines. No names unless asked for."""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.simulation.types import Fleet, max_watts
from slurm_gpumem.simulation.what_if import (
    ALONE,
    ASSUMED,
    BOUNDED,
    SHARED,
    SOURCES,
    GroupGain,
    Sharing,
    Totals,
    WhatIf,
)
from slurm_gpumem.slurm.state.history import left_out_text
from slurm_gpumem.text import clipped, count

SCHEMA = "gpumem-what-if/1"
_SHOWN = 5
_NO_WAIT_H = 0.01
"""A mean wait below this is none."""
ROWS: Tuple[Tuple[str, Callable[[Totals], float], int], ...] = (
    ("GPU-hours with a job on the GPU", lambda t: t.gpu_hours, 0),
    ("mean wait, hours", lambda t: t.waiting_h, 2),
    ("95th percentile, hours", lambda t: t.waiting_p95_h, 2),
    ("submission to end, mean hours", lambda t: t.completion_h, 2),
    ("jobs in the queue, mean", lambda t: t.queue, 1),
    ("slowdown of jobs on one GPU", lambda t: t.slowdown, 2),
    ("jobs beyond their time limit", lambda t: t.over_limit, 0),
    ("GPU energy, kWh", lambda t: t.energy_kwh, 0),
)
"""What is shown of each way, and with how many digits."""


_SERVERS = {"mps": "an MPS server for each user", "mps-shared": "one MPS server for all users"}


def screen(found: WhatIf, sharing: Sharing, *, names: bool) -> List[str]:
    """The lines."""
    slowdown, server = sharing.slowdown, _SERVERS.get(sharing.mode, "time slices")
    played = f"shared by {server}, placement {sharing.placement}, max_slowdown {slowdown:g}"
    lines = [*about(found), played, ""]
    lines += [
        f"{title:<32} " + " ".join(f"{cell:>20}" for cell in cells)
        for title, *cells in cells_of(found, slowdown)
    ]
    lines += ["", *_groups("partition", found.partitions, slowdown, names=names)]
    lines += _users(found, slowdown, names=names)
    return [*lines, "", *how_sure(found)]


def cells_of(found: WhatIf, slowdown: float) -> List[Tuple[str, str, str, str]]:
    """The table, its titles first: a figure's name, and its value in each of the three ways."""
    rows = [("", ALONE, SHARED, f"… within {slowdown:g}")]
    for title, value, digits in ROWS:
        alone, shared, bounded = (_cell(found.totals, way, value, digits) for way in (ALONE, SHARED, BOUNDED))
        rows.append((title, alone, shared, bounded))
    return rows


def about(found: WhatIf) -> List[str]:
    """What the answer rests on."""
    users = count(found.users, "user") if found.users else "unknown users (played as one)"
    lines = [
        f"{found.days:.0f} days, {count(found.jobs, 'job')} on GPUs by {users}, "
        f"{found.single / found.jobs:.0%} of them on one GPU"
    ]
    if found.left_out:
        rows = count(sum(found.left_out.values()), "row")
        lines.append(f"left out: {rows}: {left_out_text(found.left_out)}")
    for pool in found.pools[:_SHOWN]:
        fleet = pool.fleet
        said = [] if pool.counted else ["as seen from the jobs; --gpus says otherwise"]
        said += [] if pool.known else ["memory assumed; --gpu-memory says otherwise"]
        said += ["MIG: not shared further"] if pool.mig else []
        lines.append(
            f"{fleet.gpus} × {clipped(fleet.name if pool.known else pool.gpu_type or 'GPU', 24)} of "
            f"{fleet.memory_mib // 1024} GiB in {count(fleet.nodes, 'node')}"
            + (f" ({'; '.join(said)})" if said else "")
        )
    if len(found.pools) > _SHOWN:
        lines.append(f"and {count(len(found.pools) - _SHOWN, 'smaller pool')}")
    known = [f"{name} {found.sources[name]:.0%}" for name in SOURCES if found.sources.get(name)]
    lines.append("memory of jobs on one GPU from: " + (", ".join(known) if known else "none"))
    return lines


def _cell(
    totals: Mapping[str, Mapping[str, Totals]], way: str, value: Callable[[Totals], float], digits: int
) -> str:
    values = [value(ways[way]) for ways in totals.values()]
    middle = value(totals["middle"][way])
    text = f"{middle:,.{digits}f}"
    low, high = f"{min(values):,.{digits}f}", f"{max(values):,.{digits}f}"
    return text if low == high else f"{text} ({low}–{high})"


def _groups(what: str, rows: Sequence[GroupGain], slowdown: float, *, names: bool) -> List[str]:
    title = f"within {slowdown:g}"
    lines = [f"{what:<20} {'jobs':>7}  recorded wait h  submission to end h: whole GPUs  {title}"]
    for number, row in enumerate(rows[:_SHOWN], 1):
        name = clipped(row.name, 20) if names else f"{what} {number}"
        lines.append(
            f"{name:<20} {row.jobs:>7,}  {row.waited_h:>15.2f}  {row.alone_h:>31.2f}  "
            f"{row.shared_h:>{len(title)}.2f}"
        )
    if len(rows) > _SHOWN:
        lines.append(f"and {len(rows) - _SHOWN} more")
    return lines


def _users(found: WhatIf, slowdown: float, *, names: bool) -> List[str]:
    earlier = sum(row.shared_h < 0.98 * row.alone_h for row in found.by_user)
    later = sum(row.shared_h > 1.02 * row.alone_h for row in found.by_user)
    same = len(found.by_user) - earlier - later
    lines = [
        f"users within {slowdown:g}: {earlier} get results earlier on average, {later} later, "
        f"{same} about as before"
    ]
    return [*lines, *_groups("user", found.by_user, slowdown, names=True)[1:]] if names else lines


def how_sure(found: WhatIf) -> List[str]:
    """How far to trust it."""
    simulated = found.totals["middle"][ALONE]
    lines = [
        f"How sure: recorded mean wait {found.recorded_wait_h:.2f} h (95 %: {found.recorded_p95_h:.2f} h), "
        f"simulated without sharing {simulated.waiting_h:.2f} h ({simulated.waiting_p95_h:.2f} h);"
    ]
    waited = max(simulated.waiting_h, found.recorded_wait_h) >= _NO_WAIT_H
    far = abs(simulated.waiting_h - found.recorded_wait_h) > 0.5 * max(found.recorded_wait_h, 0.1)
    lines.append(
        "  far apart: limits, fair share, reservations and down nodes are not in sacct; trust the ratio only."
        if far
        else "  close enough to trust the difference."
        if waited
        else "  nobody waited, so this does not show how well the simulation fits."
    )
    assumed = found.sources.get(ASSUMED, 0.0)
    if len(found.totals) > 1:
        lines.append(
            f"  Memory and activity of {assumed:.0%} of the jobs on one GPU are assumed: "
            "the ranges are over three assumptions."
        )
        lines.append(
            "  AccountingStorageTRES=gres/gpumem,gres/gpuutil records them from now on; then ask again."
        )
    return lines


def what_if_json(found: WhatIf, *, names: bool) -> Dict[str, Any]:
    """The same for a machine."""

    def groups(what: str, rows: Sequence[GroupGain]) -> List[Dict[str, Any]]:
        return [
            {**row._asdict(), "name": row.name if names else f"{what} {number}"}
            for number, row in enumerate(rows, 1)
        ]

    return {
        "schema": SCHEMA,
        "jobs": found.jobs,
        "single": found.single,
        "users": found.users,
        "days": found.days,
        "pools": [
            {"gpus": pool.fleet.gpus, "nodes": pool.fleet.nodes, "memory_mib": pool.fleet.memory_mib,
             "gpu": pool.fleet.name, "counted": pool.counted, "jobs": len(pool.jobs)}
            for pool in found.pools
        ],
        "left_out": dict(found.left_out),
        "sources": dict(found.sources),
        "recorded_wait_h": found.recorded_wait_h,
        "recorded_p95_h": found.recorded_p95_h,
        "totals": {
            name: {way: total._asdict() for way, total in ways.items()} for name, ways in found.totals.items()
        },
        "partitions": groups("partition", found.partitions),
        "by_user": groups("user", found.by_user),
    }  # fmt: skip


# GPUs as a command line names them: "4xa100-40gb" is one node, "16x8xh100" sixteen nodes of eight.

_TEXT = re.compile(r"(?:([0-9]{1,6})x)?([0-9]{1,6})x(.+)")

MOST_GPUS = 1_000_000


def parse_fleet(text: str) -> Fleet:
    """The GPUs that a text names; their memory in shards of a GiB."""
    match = _TEXT.fullmatch(text.strip())
    if match is None or not int(match[2]) or (match[1] is not None and not int(match[1])):
        raise UsageError(f"{text!r} names no GPUs; write 4xa100-40gb, or 16x8xh100 for 16 nodes of 8")
    gpu = find_gpu(match[3])
    nodes, per_node = int(match[1] or 1), int(match[2])
    if nodes * per_node > MOST_GPUS:
        raise UsageError(f"{text!r} names {nodes * per_node:,} GPUs; up to {MOST_GPUS:,} can be simulated")
    return Fleet(
        nodes=nodes,
        gpus_per_node=per_node,
        memory_mib=gpu.memory_mib // 1024 * 1024,
        name=gpu.name,
        max_watts=max_watts(gpu.name),
    )
