"""What `gpumem node status` shows: which jobs share which GPU, who uses what, and how MPS is doing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.errors import UsageError
from slurm_gpumem.formats.live import Live, LiveGpu, LiveJob, live_table, read_live
from slurm_gpumem.formats.mig_profiles import profile_name
from slurm_gpumem.node import jobs
from slurm_gpumem.node.hooks.service import sampler_runs
from slurm_gpumem.node.jobs import SHARED_UID, RunFolder
from slurm_gpumem.node.mps.daemons import MpsService
from slurm_gpumem.text import printable
from slurm_gpumem.units import duration

SCHEMA = "gpumem-node-status/1"
_FILLS = "█▒░▓"
_ASCII_FILLS = "#=-+"
_BAR = 44
_IDLE_SHOWN_S = 60.0
"""A GPU that is held does nothing for shorter times while jobs start, read or write."""


@dataclass(frozen=True)
class NodeStatus:
    """A node at one moment."""

    live: Live
    daemons: Mapping[Tuple[str, int], int]
    """(UUID, uid) → processes of that user's MPS there."""
    sampler: bool
    pending: Tuple[int, ...]
    """Jobs that the sampler has not seen yet."""


def read_status(folder: RunFolder, config: NodeConfig) -> NodeStatus:
    """Read the node's state; UsageError when this is no such node or another user's business."""
    if not folder.root.is_dir():
        raise UsageError(f"{folder.root}: no shared job has run on this node since it started")
    try:
        folder.live.stat()
        with open(folder.live, encoding="utf-8"):
            pass
    except FileNotFoundError:
        pass
    except PermissionError:
        raise UsageError(
            f"{folder.live}: only root sees all jobs of a node; try sudo, or squeue for your own"
        ) from None
    live = read_live(folder.live) or Live()
    daemons: Dict[Tuple[str, int], int] = {}
    for daemon in MpsService(folder, config.mps_control).daemons():
        key = (daemon.uuid, daemon.uid)
        daemons[key] = daemons.get(key, 0) + 1
    pending = tuple(job.job_id for job in jobs.all_jobs(folder) if job.job_id not in live.jobs)
    return NodeStatus(live, daemons, sampler_runs(folder), pending)


def as_json(status: NodeStatus) -> Dict[str, Any]:
    """The same for programs."""
    table = live_table(status.live)
    return {
        "schema": SCHEMA,
        "sampler": status.sampler,
        "mps": [
            {"gpu": uuid, "uid": uid, "processes": count} for (uuid, uid), count in status.daemons.items()
        ],
        "pending": list(status.pending),
        **{key: table[key] for key in ("node", "at", "source", "gpus", "jobs")},
    }


def render(status: NodeStatus, *, utf8: bool = True) -> List[str]:
    """The screen, line by line, at most 100 wide."""
    live, now = status.live, time.time()
    state = "sampling" if status.sampler else "no sampler runs"
    seen = "nothing measured yet" if live.at is None else f"source {live.source}, {now - live.at:.0f} s ago"
    dash = "·" if utf8 else "-"
    lines = [f"{live.node or '?'}  {state} {dash} {seen}"]
    for uuid, gpu in sorted(live.gpus.items(), key=lambda item: (item[1].number or 0, item[1].instance)):
        here = {job_id: job for job_id, job in sorted(live.jobs.items()) if uuid in job.gpus}
        lines += ["", _gpu_line(uuid, gpu, here, utf8), *_job_lines(uuid, here, utf8)]
        lines += _idle_lines(gpu)
        lines += _mps_lines(uuid, status)
    if not live.gpus:
        lines += ["", "no shared job is on this node"]
    if status.pending:
        lines += ["", "not measured yet: " + ", ".join(map(str, status.pending))]
    return [printable(line)[:100] for line in lines]


def _gpu_line(uuid: str, gpu: LiveGpu, here: Mapping[int, LiveJob], utf8: bool) -> str:
    sample = gpu.sample
    total = sample.memory_total_mib
    fills = _FILLS if utf8 else _ASCII_FILLS
    bar = ""
    for number, job in enumerate(here.values()):
        mib = job.now_mib.get(uuid)
        bar += fills[number % len(fills)] * (max(1, round(mib / total * _BAR)) if mib and total else 0)
    edge = ("▕", "▏") if utf8 else ("|", "|")
    activity = "".join(
        f"  {name} {value * 100:.0f}%"
        for name, value in (("SM", sample.sm_active), ("DRAM", sample.dram_active))
        if value is not None
    )
    if not activity and sample.utilization is not None:
        activity = f"  busy {sample.utilization * 100:.0f}%"
    power = "" if sample.power_w is None else f"  {sample.power_w:.0f} W"
    name = "?" if gpu.number is None else str(gpu.number)
    profile = profile_name(gpu.name)
    name += f":{profile} {gpu.instance}" if profile else ""
    sizes = f"{_gib(sample.memory_used_mib)}/{_gib(total)} GiB"
    return f"gpu{name} {edge[0]}{bar[:_BAR]:<{_BAR}}{edge[1]} {sizes}{activity}{power}"


def _job_lines(uuid: str, here: Mapping[int, LiveJob], utf8: bool) -> List[str]:
    fills = _FILLS if utf8 else _ASCII_FILLS
    lines = []
    for number, (job_id, job) in enumerate(here.items()):
        now, peak, limit = job.now_mib.get(uuid), job.measured.peak_mib, job.measured.limit_mib
        word = "" if job.measured.shards_verified or limit is None else " claimed"
        shards = job.measured.shards is not None
        word = word if shards else ""
        over = "  OVER ITS SHARDS" if shards and now is not None and limit is not None and now > limit else ""
        outside = "  OUTSIDE MPS" if any("outside MPS" in note for note in job.notes) else ""
        sizes = f"now {_gib(now):>6}  peak {_gib(peak):>6}  of {_gib(limit):>6} GiB{word}"
        mark = fills[number % len(fills)]
        lines.append(f"  {mark} {job_id:>8} {job.user[:10]:<10} {sizes}  {job.mode}{over}{outside}")
    return lines


def _idle_lines(gpu: LiveGpu) -> List[str]:
    if gpu.idle_s is None or gpu.idle_s < _IDLE_SHOWN_S:
        return []
    return [f"    HELD AND IDLE for {duration(gpu.idle_s)}: its jobs hold memory, and it does nothing"]


def _mps_lines(uuid: str, status: NodeStatus) -> List[str]:
    users = [
        f"{'shared by all users' if uid == SHARED_UID else f'uid {uid}'} ({count} processes)"
        for (gpu, uid), count in sorted(status.daemons.items())
        if gpu == uuid
    ]
    return [f"    MPS: {', '.join(users)}"] if users else []


def _gib(mib: Optional[float]) -> str:
    return "?" if mib is None else f"{mib / 1024:.1f}"
