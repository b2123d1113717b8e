"""One's own jobs: Slurm says which and where, each node's live file what they use.

On the node itself the file is read directly. From elsewhere a step in one of the user's jobs there reads it:
nodes have no port to ask, and most have no shared file system that root may write to.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.config.node import NodeConfig, nodes_are_here, run_dir
from slurm_gpumem.formats.live import OwnJob, OwnLive, own_live_from, read_own_live
from slurm_gpumem.node.jobs import RunFolder
from slurm_gpumem.report.top.arrays import Arrays, TopArray
from slurm_gpumem.slurm.client import Commands
from slurm_gpumem.slurm.node_names import fold_names
from slurm_gpumem.slurm.state.running import FileOnNode, RunningJob, running_gpu_jobs

# What one screen of `gpumem top` shows.


class TopJob(NamedTuple):
    """One job; None is "not known". Sizes are in MiB; of several nodes those of the one with most."""

    job_id: int
    shown: str
    """As squeue shows it: "4711" or "4711_3"."""
    name: str
    user: str
    node: str
    gpus: Tuple[int, ...] = ()
    shards: Optional[int] = None
    share_mib: Optional[float] = None
    """What it may use of one GPU."""
    whole_gpu: bool = False
    estimate_mib: Optional[int] = None
    now_mib: Optional[float] = None
    peak_mib: Optional[float] = None
    sm_active: Optional[float] = None
    neighbours: Optional[int] = None
    neighbours_mib: Optional[float] = None
    slowdown: Optional[float] = None
    """How much longer its steps take while sharing: 1 where it has met nobody, else nobody measures it."""
    max_slowdown: Optional[float] = None
    """What its share was sized for."""
    left_s: Optional[float] = None
    seen_at: Optional[float] = None
    """Unix time of the measurement; None where there is none."""
    profile: str = ""
    """Of its MIG instance; "" on a whole GPU or a share."""

    @property
    def array(self) -> Optional[int]:
        """The array that it is a task of."""
        array, _, task = self.shown.partition("_")
        return int(array) if task and array.isdigit() else None


def once(rows: Sequence[TopJob]) -> Tuple[TopJob, ...]:
    """Rows of jobs on one node each → one row for each job, with the most that any of its nodes has."""
    by_job: Dict[int, List[TopJob]] = {}
    for row in rows:
        by_job.setdefault(row.job_id, []).append(row)
    return tuple(_together(parts) if len(parts) > 1 else parts[0] for parts in by_job.values())


def _together(parts: Sequence[TopJob]) -> TopJob:
    most: Dict[str, Any] = {}
    for name in ("share_mib", "now_mib", "peak_mib", "sm_active", "neighbours", "neighbours_mib"):
        known = [value for part in parts if (value := getattr(part, name)) is not None]
        most[name] = max(known, default=None)
    seen = [part.seen_at for part in parts]
    return parts[0]._replace(
        **most,
        node=fold_names([part.node for part in parts]),
        gpus=tuple(sorted({gpu for part in parts for gpu in part.gpus})),
        slowdown=1.0 if all(part.slowdown == 1.0 for part in parts) else None,
        seen_at=None if None in seen else min(at for at in seen if at is not None),
    )


class TopGpu(NamedTuple):
    """One GPU and who is on it, in shares."""

    node: str
    number: int
    capacity: int
    held: Tuple[Tuple[str, str, int], ...] = ()
    """(job, name, shares) of each."""
    profile: str = ""
    """Of a MIG instance."""


class View(NamedTuple):
    """Everything at one moment."""

    at: float
    everybody: bool
    jobs: Tuple[TopJob, ...]
    gpus: Tuple[TopGpu, ...] = ()
    """All GPUs of the cluster; only for admins."""
    notes: Tuple[str, ...] = ()
    """What is missing and why, or how it was had."""
    arrays: Tuple[TopArray, ...] = ()
    """Of which tasks are among the jobs."""


def tasks_of(jobs: Sequence[RunningJob]) -> Dict[int, List[str]]:
    """The running tasks of arrays, by the array's number."""
    found: Dict[int, List[str]] = {}
    for job in jobs:
        array, _, task = job.shown.partition("_")
        if task and array.isdigit():
            found.setdefault(int(array), []).append(job.shown)
    return found


_QUEUE_EVERY_S = 10.0
_STALE_S = 15.0
"""A sampler writes every two seconds; a file older than this has nobody who writes it."""
_MOST_STEPS = 8


class OwnJobs:
    """Looks again and again; keeps a step for each other node until it is closed."""

    def __init__(self, config: NodeConfig, commands: Commands, *, every_s: float, steps: bool) -> None:
        self._config = config
        self._commands = commands
        self._every_s = every_s
        self._with_steps = steps
        self._steps: Dict[str, FileOnNode] = {}
        self._arrays = Arrays(None, commands)
        self._jobs: List[RunningJob] = []
        self._asked = float("-inf")
        self._here = {os.uname().nodename.partition(".")[0], os.environ.get("SLURMD_NODENAME", "")}

    def look(self) -> View:
        """The screen as of now; SlurmError when Slurm does not answer."""
        now = time.time()
        if time.monotonic() - self._asked >= _QUEUE_EVERY_S:
            self._jobs, self._asked = running_gpu_jobs(self._commands, os.geteuid()), time.monotonic()
        since = time.monotonic() - self._asked
        by_node: Dict[str, List[RunningJob]] = {}
        for job in self._jobs:
            for node in job.nodes:
                by_node.setdefault(node, []).append(job)
        for node in set(self._steps) - set(by_node):
            self._steps.pop(node).close()
        rows: List[TopJob] = []
        notes: List[str] = []
        for node, jobs in by_node.items():
            live, note = self._live(node, jobs[0].job_id, now)
            notes += [note] if note else []
            rows += [self._row(job, node, live, since) for job in jobs]
        arrays, note = self._arrays.look(tasks_of(self._jobs))
        return View(now, False, once(rows), notes=(*notes, *([note] if note else [])), arrays=arrays)

    def waits(self) -> bool:
        """Whether a step has been started and has not answered yet."""
        return any(step.latest() is None and not step.failed for step in self._steps.values())

    def close(self) -> None:
        """End the steps."""
        for step in self._steps.values():
            step.close()
        self._steps = {}

    def _live(self, node: str, job_id: int, now: float) -> Tuple[Optional[OwnLive], str]:
        """What the node's file says, and what to say about it."""
        path = RunFolder(run_dir(node)).own_live(os.geteuid())
        note = ""
        if node in self._here or nodes_are_here():
            live = read_own_live(path)
            missing = "" if live else f"{node}: nothing is measured (no sampler has seen your jobs there)"
        else:
            live, missing = self._from_step(node, job_id, str(path))
            note = f"{node}: through a step in job {job_id} (srun --overlap)"
        if live is None:
            return None, missing
        age = now - live.at if live.at is not None else _STALE_S
        if age >= _STALE_S:
            return live, f"{node}: last measured {age:.0f} s ago; its sampler does not run"
        return live, note

    def _from_step(self, node: str, job_id: int, path: str) -> Tuple[Optional[OwnLive], str]:
        if not self._with_steps:
            return None, f"{node}: not measured from here (--no-steps)"
        step = self._steps.get(node)
        if step is None:
            if len(self._steps) >= _MOST_STEPS:
                return None, f"{node}: not measured from here; {_MOST_STEPS} nodes are looked at at once"
            step = FileOnNode(self._commands, job_id, node, path, self._every_s)
            self._steps[node] = step
        text = step.latest()
        if text is None:
            if step.failed:
                return None, f"{node}: not measured from here ({step.failed})"
            return None, f"{node}: waiting for a step in job {job_id} (srun --overlap)"
        try:
            return own_live_from(json.loads(text)), f"{node}: its answer is no live file"
        except (ValueError, RecursionError):
            return None, f"{node}: its answer is no live file"

    def _row(self, job: RunningJob, node: str, live: Optional[OwnLive], since: float) -> TopJob:
        seen = live.jobs.get(job.job_id) if live else None
        row = queued_row(job, node, self._config.shard_mib, since)
        return row if seen is None or live is None else _measured(row, seen, live.at)


def queued_row(job: RunningJob, node: str, shard_mib: int, since: float) -> TopJob:
    """What Slurm alone knows, `since` seconds after it was asked."""
    return TopJob(
        job.job_id,
        job.shown,
        job.name,
        job.user,
        node,
        shards=job.shares,
        share_mib=None if job.shares is None else job.shares * shard_mib,
        whole_gpu=job.shares is None,
        left_s=None if job.left_s is None else max(0.0, job.left_s - since),
    )


def _measured(row: TopJob, seen: OwnJob, at: Optional[float]) -> TopJob:
    share = seen.gpu_mib if row.whole_gpu else seen.share_mib
    return row._replace(
        gpus=seen.gpus,
        profile=seen.profile,
        share_mib=row.share_mib if share is None else share,
        estimate_mib=seen.estimate_mib,
        now_mib=seen.now_mib,
        peak_mib=seen.peak_mib,
        sm_active=seen.sm_active,
        neighbours=seen.neighbours,
        neighbours_mib=seen.neighbours_mib,
        slowdown=None if seen.met else 1.0,
        max_slowdown=accepted(seen.slow),
        seen_at=at,
    )


def accepted(slow: str) -> Optional[float]:
    """The slowdown of a job's claim as a number; its owner can have written anything there."""
    try:
        value = float(slow)
    except ValueError:
        return None
    return value if 1 <= value < 100 else None
