"""The remembered file, `gpumem-remembered/1`: what a user's runs needed (peaks, activity, CPUs), by recipe.

The accounting writes one for each user; `gpusbatch` reads it before it estimates. Nobody can talk down what
another's job asks for: it holds one's own runs only, and a file that somebody else put there is not read.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import MappingProxyType
from typing import Any, Collection, Dict, FrozenSet, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from slurm_gpumem.files import read_json_of, write_atomic
from slurm_gpumem.formats.values import MOST_WHOLE, name, whole_list
from slurm_gpumem.units import MIB
from slurm_gpumem.xdg import cache_path

SCHEMA = "gpumem-remembered/1"
NAME = "remembered.json"
SCRIPT_MARK = "s"
"""Begins the fingerprint of a script of which nothing else is known; a model's is hexadecimal."""
ONCE_MARK = "once"
"""Begins that of an array's tasks, which say nothing of any other submission: it is never remembered."""
_MOST_BYTES, _MOST_PEAKS = 16 * MIB, 100

PeaksByGpu = Mapping[str, Sequence[int]]
"""GPU type → measured peaks in MiB, or SM activity alone in percent, the latest first."""
PEAKS, ACTIVITY, CPUS, SAVERS = "runs", "activity", "cpus", "savers"
"""The tables of the file, and the list of those that save checkpoints."""


class CpuRun(NamedTuple):
    """The CPUs of one run."""

    used: float
    """At most, in nearly all of its busy time."""
    held: int


CpusByGpu = Mapping[str, Sequence[CpuRun]]
"""GPU type → runs, the latest first."""


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
    by_gpu = _by_gpu(path, recipe, table_name)
    return {gpu: tuple(filter(None, whole_list(peaks, _MOST_PEAKS))) for gpu, peaks in by_gpu.items()}


def read_savers(path: Union[str, Path]) -> FrozenSet[str]:
    """The fingerprints of models and scripts whose runs saved checkpoints."""
    found = _table(path).get(SAVERS)
    return frozenset(filter(None, map(name, found)) if isinstance(found, list) else ())


def read_cpus(path: Union[str, Path], recipe: Recipe) -> CpusByGpu:
    """The CPUs of a recipe's runs; what is no run is passed over."""
    return {
        gpu: tuple(run for table in runs[:_MOST_PEAKS] if (run := _cpu_run(table)))
        for gpu, runs in _by_gpu(path, recipe, CPUS).items()
        if isinstance(runs, list)
    }


def _by_gpu(path: Union[str, Path], recipe: Recipe, table_name: str) -> Mapping[str, Any]:
    runs = _table(path).get(table_name)
    by_gpu = runs.get(" ".join(recipe)) if isinstance(runs, dict) else None
    return by_gpu if isinstance(by_gpu, dict) else {}


def _table(path: Union[str, Path]) -> Mapping[str, Any]:
    table = read_json_of(path, most_bytes=_MOST_BYTES, owners=(os.geteuid(), 0))
    return table if isinstance(table, dict) and table.get("schema") == SCHEMA else {}


def _cpu_run(table: Any) -> Optional[CpuRun]:
    if not isinstance(table, list) or len(table) != 2:
        return None
    used, held = table
    known = type(used) in (int, float) and 0 <= used < MOST_WHOLE and type(held) is int
    return CpuRun(used, held) if known and 0 < held < MOST_WHOLE else None


def write_remembered(
    path: Path,
    runs: Mapping[Recipe, PeaksByGpu],
    activity: Mapping[Recipe, PeaksByGpu] = MappingProxyType({}),
    cpus: Mapping[Recipe, CpusByGpu] = MappingProxyType({}),
    savers: Collection[str] = (),
    *,
    mode: int = 0o600,
) -> None:
    """Write a user's file, whole or not at all."""
    table: Dict[str, Any] = {"schema": SCHEMA, "made_at": round(time.time())}
    tables: Tuple[Tuple[str, Mapping[Recipe, Mapping[str, Any]]], ...] = (
        (PEAKS, runs),
        (ACTIVITY, activity),
        (CPUS, cpus),
    )
    for key, values in tables:
        table[key] = {" ".join(recipe): by_gpu for recipe, by_gpu in values.items()}
    table[SAVERS] = sorted(savers)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(table, separators=(",", ":")) + "\n", mode=mode)
