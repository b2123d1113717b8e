"""Measured peaks, activity and CPUs by what was run: a small file per user, which `gpusbatch` reads."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Set, TypeVar

from slurm_gpumem.accounting.index.rows import LEAST_SAMPLES, recipe_of, rest_of
from slurm_gpumem.formats.remembered import CpuRun, Recipe, own_file, write_remembered
from slurm_gpumem.formats.verdicts import CHECKPOINTED

_LATEST = 10
"""Peaks kept of each; more add nothing."""
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
    rows = connection.execute(
        "SELECT recipe.text, gpu.text, peak_mib, cpus, rest, records, job_id, restarts, cluster FROM job "
        "JOIN word AS recipe ON recipe.id = job.recipe JOIN word AS gpu ON gpu.id = job.gpu "
        "WHERE judged = 1 AND uid = ? ORDER BY end DESC",
        (uid,),
    )
    for text, gpu, peak, cpus, rest, records, *run in rows.fetchall():
        recipe, others = recipe_of(text), rest_of(rest)
        if records > 1:
            others = others._replace(alone_sm=_busiest(connection, uid, run))
        if others.verdict in CHECKPOINTED:
            latest.savers.add(recipe.fingerprint)
        samples = others.samples
        if recipe.known and samples.isdigit() and int(samples) >= LEAST_SAMPLES:
            _add(latest.peaks, recipe, gpu, peak)
            if others.alone_sm:
                _add(latest.activity, recipe, gpu, max(1, round(100 * float(others.alone_sm))))
            if others.cpus_high and cpus:
                _add(latest.cpus, recipe, gpu, CpuRun(float(others.cpus_high), cpus))
    return latest


def _busiest(connection: sqlite3.Connection, uid: int, run: Sequence[int]) -> str:
    """The highest activity on any node of a run: the ranks wait for the busiest of them."""
    rests = connection.execute(
        "SELECT rest FROM job WHERE job_id = ? AND restarts = ? AND cluster = ? AND uid = ?", (*run, uid)
    )
    return max((rest_of(rest).alone_sm for (rest,) in rests), key=lambda part: float(part or 0), default="")


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
