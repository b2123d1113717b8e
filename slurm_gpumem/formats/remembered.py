"""The remembered file, `gpumem-remembered/1`: measured peaks of one user's runs, by what was run.

The accounting writes one for each user; `gpusbatch` reads it before it estimates. Nobody can talk down what
another's job asks for: it holds one's own runs only, and a file that somebody else put there is not read.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Mapping, Union

from slurm_gpumem.files import read_plain, write_atomic
from slurm_gpumem.units import MIB

SCHEMA = "gpumem-remembered/1"
NAME = "remembered.json"
_MOST_BYTES = 16 * MIB


def own_file() -> Path:
    """Where this user's peaks are remembered; GPUMEM_REMEMBERED names another file."""
    named = os.environ.get("GPUMEM_REMEMBERED")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(named) if named else Path(cache, "gpumem", NAME)


def read_runs(path: Union[str, Path]) -> Mapping[str, Any]:
    """Recipe → GPU type → peaks; nothing where the file is missing, broken, a trap or another user's."""
    try:
        data = read_plain(path, most_bytes=_MOST_BYTES, owners=(os.geteuid(), 0)).data
        table = json.loads(data)
    except (OSError, ValueError, RecursionError):
        return {}
    runs = table.get("runs") if isinstance(table, dict) and table.get("schema") == SCHEMA else None
    return runs if isinstance(runs, dict) else {}


def write_runs(path: Path, runs: Mapping[str, Any], *, mode: int = 0o600) -> None:
    """Write a user's file, whole or not at all."""
    table = {"schema": SCHEMA, "made_at": round(time.time()), "runs": runs}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(table, separators=(",", ":")) + "\n", mode=mode)
