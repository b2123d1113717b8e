"""All running jobs and all GPUs of the cluster, for root and SlurmUser.

Slurm says who is where. What jobs use comes from this node's live file and, of other nodes, from the records
that their samplers bring up to date every half minute, where this host sees the folder they are in.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple

from slurm_gpumem.config.accounting import AccountingConfig
from slurm_gpumem.config.node import nodes_are_here, run_dir
from slurm_gpumem.errors import SlurmError
from slurm_gpumem.formats.curve import parse_curve
from slurm_gpumem.formats.job_record import (
    BadRecordError,
    JobRecord,
    Measurement,
    read_job_record,
    record_name,
)
from slurm_gpumem.formats.live import Live, read_live
from slurm_gpumem.formats.mig_profiles import profile_name
from slurm_gpumem.node.jobs import RunFolder, get
from slurm_gpumem.report.top.arrays import Arrays
from slurm_gpumem.report.top.own import TopGpu, TopJob, View, accepted, once, queued_row, tasks_of
from slurm_gpumem.slurm.client import Commands
from slurm_gpumem.slurm.gres import parse_gres, units_per_gpu
from slurm_gpumem.slurm.state.nodes import ask_nodes
from slurm_gpumem.slurm.state.running import Placement, RunningJob, placed, running_gpu_jobs
from slurm_gpumem.text import count

_QUEUE_EVERY_S = 10.0
_MOST_PLACED = 64
"""Jobs whose place is asked for in one look: one question each, once in a job's life."""
_STALE_S = 120.0
"""Records are written every half minute."""


class _Seen(NamedTuple):
    """What was measured of a job on a node."""

    at: float
    estimate_mib: Optional[int]
    share_mib: Optional[float]
    now_mib: Optional[float]
    peak_mib: Optional[float]
    sm_active: Optional[float]
    slowdown: Optional[float]
    max_slowdown: Optional[float] = None


class Everybody:
    """Looks again and again."""

    def __init__(self, config: AccountingConfig, commands: Commands) -> None:
        self._config = config
        self._commands = commands
        self._arrays = Arrays(config, commands)
        self._jobs: List[RunningJob] = []
        self._asked = float("-inf")
        self._places: Dict[Tuple[int, int], List[Placement]] = {}
        self._gpus: List[Tuple[str, int, int, str]] = []
        self._here = os.uname().nodename.partition(".")[0]

    def look(self) -> View:
        """The screen as of now; SlurmError when Slurm does not answer."""
        now, notes = time.time(), []
        if time.monotonic() - self._asked >= _QUEUE_EVERY_S:
            self._gpus = self._gpus or self._all_gpus()
            self._jobs, self._asked = running_gpu_jobs(self._commands), time.monotonic()
        unplaced = self._place()
        if unplaced:
            notes.append(
                f"{count(unplaced, 'job')} not placed yet; Slurm is asked about {_MOST_PLACED} at once"
            )
        since = time.monotonic() - self._asked
        lives = {node: self._live(node) for node in {node for job in self._jobs for node in job.nodes}}
        rows = [self._row(job, node, lives[node], since, now) for job in self._jobs for node in job.nodes]
        rows = list(once([_beside(row, rows) for row in rows]))
        unseen = {row.job_id for row in rows if row.seen_at is None}
        waits = {job.job_id for job in self._jobs if job.job_id in unseen and self._has_begun(job)}
        if waits:
            notes.append(f"{count(len(waits), 'job')} not measured yet: the sampler has not written since")
        if unseen - waits:
            notes.append(
                f"{len(unseen - waits)} of {count(len(rows), 'job')} not measured: no hooks there, or their "
                "records are not where this host can read them"
            )
        arrays, note = self._arrays.look(tasks_of(self._jobs))
        notes += [note] if note else []
        return View(now, True, tuple(rows), self._gpu_rows(), tuple(notes), arrays)

    def waits(self) -> bool:
        """Nothing comes later."""
        return False

    def close(self) -> None:
        """Nothing is held."""

    def _place(self) -> int:
        """Ask where new jobs are; how many are left for the next look."""
        runs = {(job.job_id, job.restarts): job.shown for job in self._jobs}
        self._places = {run: places for run, places in self._places.items() if run in runs}
        new = sorted(runs.keys() - self._places.keys())
        for run in new[:_MOST_PLACED]:
            try:
                self._places[run] = placed(self._commands, runs[run])
            except SlurmError:
                self._places[run] = []  # ended since it was listed
        return max(0, len(new) - _MOST_PLACED)

    def _all_gpus(self) -> List[Tuple[str, int, int, str]]:
        """(node, number, shares, MIG profile) of every GPU; a GPU that is not divided has one share."""
        found = []
        for node in ask_nodes(self._commands):
            entries = parse_gres(node.get("Gres", ""))
            gpus = [(kind, number) for name, kind, number in entries if name == "gpu" and number]
            total = sum(number for _, number in gpus)
            numbers = iter(range(total))
            for kind, number in gpus:
                units = [units_per_gpu(entries, name, kind, number, total) for name in ("shard", "mps")]
                profile = profile_name(kind) or ""
                found += [(node["NodeName"], next(numbers), max(*units, 1), profile) for _ in range(number)]
        return found

    def _gpu_rows(self) -> Tuple[TopGpu, ...]:
        held: Dict[Tuple[str, int], List[Tuple[str, str, int, str]]] = {}
        for job in self._jobs:
            for place in self._places.get((job.job_id, job.restarts), ()):
                held.setdefault((place.node, place.gpu), []).append(
                    (job.shown, job.name, place.units, place.gres)
                )
        return tuple(
            TopGpu(
                node,
                number,
                capacity,
                tuple(
                    (shown, name, capacity if gres == "gpu" else units)
                    for shown, name, units, gres in held.get((node, number), ())
                ),
                profile,
            )
            for node, number, capacity, profile in self._gpus
        )

    def _has_begun(self, job: RunningJob) -> bool:
        """Whether a Prolog of ours noted this run on a node that is here: a sampler will measure it."""
        noted = [get(RunFolder(run_dir(node)), job.job_id) for node in job.nodes if self._is_here(node)]
        return any(one is not None and one.restarts == job.restarts for one in noted)

    def _is_here(self, node: str) -> bool:
        return node == self._here or nodes_are_here()

    def _live(self, node: str) -> Optional[Live]:
        if not self._is_here(node):
            return None
        return read_live(RunFolder(run_dir(node)).live)

    def _row(self, job: RunningJob, node: str, live: Optional[Live], since: float, now: float) -> TopJob:
        row = queued_row(job, node, self._config.shard_mib, since)
        places = self._places.get((job.job_id, job.restarts), ())
        numbers = tuple(place.gpu for place in places if place.node == node)
        profiles = [kind for where, number, _, kind in self._gpus if where == node and number in numbers]
        row = row._replace(gpus=numbers, profile=profiles[0] if profiles else "")
        seen = _from_live(job, live) if live else None
        seen = seen or self._from_record(job, node, now)
        if seen is None:
            return row
        share = row.share_mib if seen.share_mib is None else seen.share_mib
        return row._replace(
            share_mib=share,
            estimate_mib=seen.estimate_mib,
            now_mib=seen.now_mib,
            peak_mib=seen.peak_mib,
            sm_active=seen.sm_active,
            slowdown=seen.slowdown,
            max_slowdown=seen.max_slowdown,
            seen_at=seen.at,
        )

    def _from_record(self, job: RunningJob, node: str, now: float) -> Optional[_Seen]:
        name = record_name(job.job_id, job.restarts, node)
        for folder in self._config.folders:
            for path in (Path(folder, name), Path(folder, node, name)):
                try:
                    record, at = read_job_record(path), path.stat().st_mtime
                except (OSError, BadRecordError):
                    continue
                if record.end is None and now - at < _STALE_S:
                    return _from_record(record, at)
        return None


def _from_live(job: RunningJob, live: Live) -> Optional[_Seen]:
    found = live.jobs.get(job.job_id)
    if found is None or found.restarts != job.restarts or live.at is None:
        return None
    measured = found.measured
    now = [size for size in found.now_mib.values() if size is not None]
    shares = [figures.sm_active_share for figures in measured.gpu.values()]
    return _Seen(
        at=live.at,
        estimate_mib=found.estimate_mib,
        share_mib=_share(measured),
        now_mib=max(now, default=None),
        peak_mib=measured.peak_mib,
        sm_active=_mean(shares),
        slowdown=None if measured.met else 1.0,
    )


def _from_record(record: JobRecord, at: float) -> _Seen:
    measured = record.measured
    curves = [parse_curve(figures.curve) for figures in measured.gpu.values() if figures.curve]
    last = [size for curve in curves if curve for size in curve.memory_mib[-1:] if size is not None]
    claim = record.claim
    return _Seen(
        at=at,
        estimate_mib=claim.estimate_mib if claim else None,
        share_mib=_share(measured),
        now_mib=max(last, default=None),
        peak_mib=measured.peak_mib,
        sm_active=_mean([figures.sm_active_share for figures in measured.gpu.values()]),
        slowdown=None if measured.met else 1.0,
        max_slowdown=accepted(claim.slow) if claim else None,
    )


def _share(measured: Measurement) -> Optional[float]:
    """What it may use of one GPU: its limit, or all of a whole one."""
    if measured.limit_mib is not None:
        return measured.limit_mib
    sizes = [figures.memory_mib for figures in measured.gpu.values() if figures.memory_mib is not None]
    return max(sizes, default=None)


def _mean(values: List[Optional[float]]) -> Optional[float]:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _beside(row: TopJob, rows: List[TopJob]) -> TopJob:
    others = [
        other
        for other in rows
        if other.job_id != row.job_id and other.node == row.node and set(other.gpus) & set(row.gpus)
    ]
    held = [other.now_mib for other in others if other.now_mib is not None]
    return row._replace(neighbours=len(others), neighbours_mib=sum(held) if held else None)
