"""Measured peaks by what was run: a small file per user, which the estimator `remembered` reads."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from pathlib import Path
from typing import Dict, List, Optional

from slurm_gpumem.accounting.rows import LEAST_SAMPLES, recipe_of, rest_of

SCHEMA = "gpumem-remembered/1"
_LATEST = 10
"""Peaks kept of each; more tell nothing new."""


def peaks_of(connection: sqlite3.Connection, uid: int) -> Dict[str, Dict[str, List[int]]]:
    """Recipe → GPU type → peaks, the latest first, of a user's finished jobs."""
    found: Dict[str, Dict[str, List[int]]] = {}
    rows = connection.execute(
        "SELECT recipe.text, gpu.text, peak_mib, rest FROM job JOIN word AS recipe ON recipe.id = job.recipe "
        "JOIN word AS gpu ON gpu.id = job.gpu WHERE judged = 1 AND uid = ? ORDER BY end DESC",
        (uid,),
    )
    for text, gpu, peak, rest in rows:
        recipe, samples = recipe_of(text), rest_of(rest).samples
        if recipe.fingerprint and recipe.batch and samples.isdigit() and int(samples) >= LEAST_SAMPLES:
            peaks = found.setdefault(" ".join(recipe), {}).setdefault(gpu, [])
            if len(peaks) < _LATEST:
                peaks.append(peak)
    return found


def write_peaks(connection: sqlite3.Connection, uid: int, path: Path) -> bool:
    """Write a user's file anew, whole or not at all; False when nothing is remembered and nothing was."""
    runs = peaks_of(connection, uid)
    if not runs and not path.exists():
        return False
    text = json.dumps({"schema": SCHEMA, "made_at": round(time.time()), "runs": runs}, separators=(",", ":"))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
    return True


def own_file() -> Path:
    """Where this user's peaks are remembered."""
    named = os.environ.get("GPUMEM_REMEMBERED")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(named) if named else Path(cache) / "gpumem" / "remembered.json"


def remember_own(connection: sqlite3.Connection) -> Optional[str]:
    """Bring this user's file up to date with an index; why that failed, if it did."""
    try:
        write_peaks(connection, os.geteuid(), own_file())
    except OSError as error:
        return f"{error.filename or own_file()}: {error.strerror}"
    return None
