"""The remembered file, `gpumem-remembered/1`: measured peaks and activity of a user's runs, by what was run.

The accounting writes one for each user; `gpusbatch` reads it before it estimates. Nobody can talk down what
another's job asks for: it holds one's own runs only, and a file that somebody else put there is not read.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import MappingProxyType
from typing import Any, Dict, Mapping, NamedTuple, Sequence, Union

from slurm_gpumem.files import read_plain, write_atomic
from slurm_gpumem.formats.values import whole_list
from slurm_gpumem.units import MIB
from slurm_gpumem.xdg import cache_path

SCHEMA = "gpumem-remembered/1"
NAME = "remembered.json"
SCRIPT_MARK = "s"
"""Begins the fingerprint of a script of which nothing else is known; a model's is hexadecimal."""
_MOST_BYTES, _MOST_PEAKS = 16 * MIB, 100

PeaksByGpu = Mapping[str, Sequence[int]]
"""GPU type → measured peaks in MiB, or SM activity alone in percent, the latest first."""
PEAKS, ACTIVITY = "runs", "activity"
"""The tables of the file."""


class Recipe(NamedTuple):
    """What a training run is made of, besides the GPU: runs of the same recipe need the same memory."""

    fingerprint: str
    batch: str
    optimizer: str
    precision: str
    variant: str
    """A word for the rarer settings; empty where all are at their defaults."""

    @property
    def known(self) -> bool:
        """Whether it names what was run: a model with its batch, or a script (`SCRIPT_MARK`)."""
        return bool(self.fingerprint and (self.batch or self.fingerprint.startswith(SCRIPT_MARK)))


def own_file() -> Path:
    """Where this user's peaks are remembered; GPUMEM_REMEMBERED names another file."""
    named = os.environ.get("GPUMEM_REMEMBERED")
    return Path(named) if named else Path(cache_path(NAME))


def read_remembered(path: Union[str, Path], recipe: Recipe, table_name: str = PEAKS) -> PeaksByGpu:
    """Peaks (or activity) of a recipe's runs; none where the file is missing, broken or not one's own."""
    try:
        table = json.loads(read_plain(path, most_bytes=_MOST_BYTES, owners=(os.geteuid(), 0)).data)
    except (OSError, ValueError, RecursionError):
        return {}
    runs = table.get(table_name) if isinstance(table, dict) and table.get("schema") == SCHEMA else None
    by_gpu = runs.get(" ".join(recipe)) if isinstance(runs, dict) else None
    if not isinstance(by_gpu, dict):
        return {}
    return {gpu: tuple(filter(None, whole_list(peaks, _MOST_PEAKS))) for gpu, peaks in by_gpu.items()}


def write_remembered(
    path: Path,
    runs: Mapping[Recipe, PeaksByGpu],
    activity: Mapping[Recipe, PeaksByGpu] = MappingProxyType({}),
    *,
    mode: int = 0o600,
) -> None:
    """Write a user's file, whole or not at all."""
    table: Dict[str, Any] = {"schema": SCHEMA, "made_at": round(time.time())}
    for name, values in ((PEAKS, runs), (ACTIVITY, activity)):
        table[name] = {" ".join(recipe): by_gpu for recipe, by_gpu in values.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(table, separators=(",", ":")) + "\n", mode=mode)
