"""Measured peaks by what was run: a small file per user, which the estimator `remembered` reads."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from slurm_gpumem.accounting.rows import LEAST_SAMPLES, recipe_of, rest_of
from slurm_gpumem.formats.remembered import Recipe, own_file, write_remembered

_LATEST = 10
"""Peaks kept of each; more add nothing."""


def peaks_of(connection: sqlite3.Connection, uid: int) -> Dict[Recipe, Dict[str, List[int]]]:
    """Recipe → GPU type → peaks, the latest first, of a user's finished jobs."""
    return _latest(connection, uid)[0]


def _latest(
    connection: sqlite3.Connection, uid: int
) -> Tuple[Dict[Recipe, Dict[str, List[int]]], Dict[Recipe, Dict[str, List[int]]]]:
    """Peaks, and percents of SM activity of runs that had their GPU to themselves for a while."""
    found: Dict[Recipe, Dict[str, List[int]]] = {}
    active: Dict[Recipe, Dict[str, List[int]]] = {}
    rows = connection.execute(
        "SELECT recipe.text, gpu.text, peak_mib, rest FROM job JOIN word AS recipe ON recipe.id = job.recipe "
        "JOIN word AS gpu ON gpu.id = job.gpu WHERE judged = 1 AND uid = ? ORDER BY end DESC",
        (uid,),
    )
    for text, gpu, peak, rest in rows:
        recipe, others = recipe_of(text), rest_of(rest)
        samples = others.samples
        if recipe.known and samples.isdigit() and int(samples) >= LEAST_SAMPLES:
            peaks = found.setdefault(recipe, {}).setdefault(gpu, [])
            if len(peaks) < _LATEST:
                peaks.append(peak)
            if others.alone_sm:
                percents = active.setdefault(recipe, {}).setdefault(gpu, [])
                if len(percents) < _LATEST:
                    percents.append(max(1, round(100 * float(others.alone_sm))))
    return found, active


def write_peaks(connection: sqlite3.Connection, uid: int, path: Path, *, mode: int = 0o600) -> bool:
    """Rewrite a user's file, whole or not at all; False when nothing is remembered and nothing was."""
    runs, active = _latest(connection, uid)
    if not runs and not path.exists():
        return False
    write_remembered(path, runs, active, mode=mode)
    return True


def remember_own(connection: sqlite3.Connection) -> Optional[str]:
    """Bring this user's file up to date with an index; why that failed, if it did."""
    try:
        write_peaks(connection, os.geteuid(), own_file())
    except OSError as error:
        return f"{error.filename or own_file()}: {error.strerror}"
    return None
