"""A site's past jobs from plain `sacct -P`, as every version writes it, with or without GPU use.

The columns and the delimiter are found by the header, so that any file with the required columns can be read.
Rows of steps ("12.batch", "12.0") only add the GPU memory and utilization that Slurm recorded for them. Rows
of jobs with GPUs that cannot be played are counted, by what is wrong with them.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple, Union

from slurm_gpumem.errors import UsageError
from slurm_gpumem.slurm.client import COMMANDS, SlurmClient
from slurm_gpumem.slurm.gres import parse_gres
from slurm_gpumem.slurm.node_names import expand_names

FIELDS = (
    "JobIDRaw", "User", "Partition", "Submit", "Eligible", "Start", "End", "TimelimitRaw", "NodeList",
    "AllocTRES", "TRESUsageInMax", "TRESUsageInAve", "AdminComment",
)  # fmt: skip
"""AdminComment is last: it is free text, and may hold the delimiter."""
_DELIMITERS = ("|", ";", "\t")
"""sacct's own, and what --delimiter is usually set to; a comma stands inside AllocTRES."""
_MOST_GPUS = 100_000
"""Of one job: more is no number of GPUs."""
_AHEAD_S = 2 * 86_400.0
"""How far a clock elsewhere may be ahead of this one."""
NOT_ENDED = "still running or never started"
UNREADABLE = "with times that cannot be read"
NO_TIME = "that took no time or ended before they started"
AHEAD = "that end in the future"
ABSURD = "with an absurd number of GPUs"
CUT_OFF = "cut off"
_REQUIRED = ("Submit", "Start", "End", "AllocTRES")
_TIMEOUT_S = 600.0
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGTP]?)")
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_MIB = 1 << 20


class PastJob(NamedTuple):
    """One job that ran on GPUs."""

    job_id: str
    user: str
    partition: str
    submit: float
    """When it was submitted, or could have started where that is later."""
    start: float
    end: float
    limit_s: float
    """0: none."""
    nodes: Tuple[str, ...]
    gpus: int
    gpu_type: Optional[str]
    gpu_mib: Optional[float]
    """The most that Slurm saw one of its tasks use (gres/gpumem)."""
    gpu_util: Optional[float]
    """Mean share of time (gres/gpuutil)."""
    comment: str
    """AdminComment."""


class History(NamedTuple):
    """Jobs that ran on GPUs, and how many rows were left out."""

    jobs: Tuple[PastJob, ...]
    left_out: Mapping[str, int]
    """By reason."""


def left_out_text(left_out: Mapping[str, int]) -> str:
    """How many rows were left out, by reason."""
    return ", ".join(f"{number:,} {reason}" for reason, number in left_out.items())


def history_command(since: str) -> List[str]:
    """The command whose output `parse_history` reads."""
    return ["sacct", "-a", "-P", "-S", since, f"--format={','.join(FIELDS)}"]


def ask_history(since: str, client: SlurmClient = COMMANDS) -> History:
    """All jobs that used GPUs since then; SlurmError when there is no accounting."""
    return parse_history(client.run(history_command(since), timeout_s=_TIMEOUT_S).splitlines(), "sacct")


def parse_history(lines: Iterable[str], where: str) -> History:
    """The jobs of an output of sacct -P (or -p); UsageError when it is none."""
    rows = iter(lines)
    first = next(rows, "").rstrip("\r\n")
    delimiter = max(_DELIMITERS, key=first.count)
    header = [name.strip() for name in first.split(delimiter)]
    # sacct -p ends every line with the delimiter, -P does not.
    closed = len(header) > 1 and not header[-1]
    header = header[:-1] if closed else header
    column = {name: place for place, name in enumerate(header)}
    missing = [name for name in _REQUIRED if name not in column]
    if "JobIDRaw" not in column and "JobID" not in column:
        missing.insert(0, "JobID")
    if missing:
        raise UsageError(
            f"{where}: not the output of sacct that is needed: its first line has no {', '.join(missing)}.\n"
            f"Make it with: {' '.join(history_command('now-30days'))} > sacct.txt"
        )
    key = "JobIDRaw" if "JobIDRaw" in column else "JobID"
    jobs: Dict[str, PastJob] = {}
    used: Dict[str, Tuple[float, float]] = {}
    left_out: Counter[str] = Counter()
    latest = time.time() + _AHEAD_S
    for line in rows:
        line = line.rstrip("\r\n")
        cells = (line[:-1] if closed and line.endswith(delimiter) else line).split(delimiter, len(header) - 1)
        if len(cells) < len(header):
            if line.strip():
                left_out[CUT_OFF] += 1
            continue
        row = dict(zip(header, cells))
        name, _, step = row[key].partition(".")
        if step:
            _add_usage(used, name, row)
            continue
        gpus, gpu_type = _gpus(row["AllocTRES"], row.get("NodeList", ""))
        if not gpus:
            continue
        found = _job(name, row, gpus, gpu_type, latest)
        if isinstance(found, str):
            left_out[found] += 1
        else:
            # A requeued job has a row for every run; each kept a GPU busy.
            jobs[name if name not in jobs else f"{name}/{found.start:.0f}"] = found
    ordered = sorted(
        (_with_usage(job, used.get(job.job_id)) for job in jobs.values()),
        key=lambda job: (job.submit, job.job_id),
    )
    return History(tuple(ordered), left_out)


def _job(
    name: str, row: Mapping[str, str], gpus: int, gpu_type: Optional[str], latest: float
) -> Union[PastJob, str]:
    """The job, or why it cannot be one."""
    submit, start, end = (_moment(row[key]) for key in ("Submit", "Start", "End"))
    if any(row[key] in ("", "Unknown", "None") for key in ("Start", "End")):
        return NOT_ENDED
    if submit is None or start is None or end is None:
        return UNREADABLE
    if end <= start:
        return NO_TIME
    if end > latest:
        return AHEAD
    if gpus > _MOST_GPUS:
        return ABSURD
    eligible = _moment(row.get("Eligible", ""))
    limit = row.get("TimelimitRaw", "")
    return PastJob(
        job_id=name,
        user=row.get("User", ""),
        partition=row.get("Partition", "").split(",")[0],
        submit=min(start, max(submit, eligible or submit)),
        start=start,
        end=end,
        limit_s=60.0 * int(limit) if limit.isdigit() else 0.0,
        nodes=_nodes(row.get("NodeList", "")),
        gpus=gpus,
        gpu_type=gpu_type,
        gpu_mib=None,
        gpu_util=None,
        comment=row.get("AdminComment", ""),
    )


def _gpus(tres: str, nodes: str) -> Tuple[int, Optional[str]]:
    """Number and type of GPUs; a job with shards or mps units has one on each node."""
    entries = parse_gres(",".join(part for part in tres.split(",") if part.startswith("gres/")))
    total = sum(count for name, kind, count in entries if name == "gpu" and kind is None)
    typed = [(kind, count) for name, kind, count in entries if name == "gpu" and kind]
    shared = any(name in ("shard", "mps") and count for name, _, count in entries)
    on_nodes = max(1, len(_nodes(nodes))) if shared else 0
    return total or sum(count for _, count in typed) or on_nodes, typed[0][0] if typed else None


def _add_usage(used: Dict[str, Tuple[float, float]], name: str, row: Mapping[str, str]) -> None:
    memory = _tres(row.get("TRESUsageInMax", ""), "gres/gpumem")
    busy = _tres(row.get("TRESUsageInAve", ""), "gres/gpuutil")
    before = used.get(name, (0.0, -1.0))
    used[name] = (max(before[0], (memory or 0.0) / _MIB), max(before[1], -1.0 if busy is None else busy))


def _with_usage(job: PastJob, used: Optional[Tuple[float, float]]) -> PastJob:
    if used is None or used[0] <= 0:
        # Slurm writes 0 where nothing was gathered.
        return job
    return job._replace(gpu_mib=used[0], gpu_util=min(1.0, used[1] / 100) if used[1] >= 0 else None)


def _tres(text: str, name: str) -> Optional[float]:
    for part in text.split(","):
        key, _, value = part.partition("=")
        match = _SIZE.fullmatch(value) if key == name else None
        if match:
            return float(match[1]) * 1024.0 ** _POWER[match[2]]
    return None


def _moment(text: str) -> Optional[float]:
    """Seconds of "2026-11-15T08:30:00" (local time) or of a plain number, as SLURM_TIME_FORMAT=%s has it."""
    if text.isdigit():
        return float(text)
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def _nodes(text: str) -> Tuple[str, ...]:
    """Nothing of "None assigned", nor of what is no list of nodes."""
    try:
        return () if " " in text else tuple(expand_names(text))
    except UsageError:
        return ()
