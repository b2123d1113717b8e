"""Measured peaks, activity and CPUs by what was run: a small file per user, which `gpusbatch` reads."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Set, TypeVar

from slurm_gpumem.accounting.index import JobTable
from slurm_gpumem.accounting.schema import Row
from slurm_gpumem.formats.remembered import CpuRun, Recipe, own_file, write_remembered
from slurm_gpumem.formats.verdicts import CHECKPOINTED

_LATEST = 10
"""Peaks kept of each; more add nothing."""
_LEAST_SAMPLES = 3
"""A run with fewer samples may have had its peak missed."""
_Value = TypeVar("_Value")
_ByRecipe = Dict[Recipe, Dict[str, List[_Value]]]
"""Recipe → GPU type → values, the latest first."""


class _Latest(NamedTuple):
    """A user's finished jobs."""

    peaks: _ByRecipe[int]
    activity: _ByRecipe[int]
    """Percents of SM activity of runs that had their GPU to themselves for a while."""
    cpus: _ByRecipe[CpuRun]
    savers: Set[str]
    """Fingerprints of what saved checkpoints."""


def _latest(connection: sqlite3.Connection, uid: int) -> _Latest:
    latest = _Latest({}, {}, {}, set())
    table = JobTable(connection)
    for row in table.rows("judged = 1 AND uid = ? ORDER BY end DESC", (uid,)):
        recipe = Recipe(
            row.fingerprint,
            "" if row.batch is None else str(row.batch),
            row.optimizer,
            row.precision,
            row.variant,
        )
        if row.verdict in CHECKPOINTED:
            latest.savers.add(row.fingerprint)
        if recipe.known and row.samples >= _LEAST_SAMPLES and row.peak_mib is not None:
            _add(latest.peaks, recipe, row.gpu, row.peak_mib)
            activity = row.alone_sm if row.records == 1 else _busiest(table, row)
            if activity is not None:
                _add(latest.activity, recipe, row.gpu, max(1, round(100 * activity)))
            if row.cpus_high is not None and row.cpus:
                _add(latest.cpus, recipe, row.gpu, CpuRun(row.cpus_high, row.cpus))
    return latest


def _busiest(table: JobTable, run: Row) -> Optional[float]:
    """The highest activity on any node of a run: the ranks wait for the busiest of them."""
    same = (run.job_id, run.restarts, table.words[run.cluster], run.uid)
    ranks = table.rows("job_id = ? AND restarts = ? AND cluster = ? AND uid = ?", same)
    return max((rank.alone_sm for rank in ranks if rank.alone_sm is not None), default=None)


def _add(values: _ByRecipe[_Value], recipe: Recipe, gpu: str, value: _Value) -> None:
    known = values.setdefault(recipe, {}).setdefault(gpu, [])
    if len(known) < _LATEST:
        known.append(value)


def write_peaks(connection: sqlite3.Connection, uid: int, path: Path, *, mode: int = 0o600) -> bool:
    """Rewrite a user's file, whole or not at all; False when nothing is remembered and nothing was."""
    latest = _latest(connection, uid)
    if not latest.peaks and not path.exists():
        return False
    write_remembered(path, *latest, mode=mode)
    return True


def remember_own(connection: sqlite3.Connection) -> Optional[str]:
    """Bring this user's file up to date with an index; why that failed, if it did."""
    try:
        write_peaks(connection, os.geteuid(), own_file())
    except OSError as error:
        return f"{error.filename or own_file()}: {error.strerror}"
    return None
