"""Traces of every format that is known, found by its content."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Dict, List, Optional

from slurm_gpumem.errors import UsageError
from slurm_gpumem.simulation.public_traces import PUBLIC, public_format
from slurm_gpumem.simulation.published_trace import is_replay, read_replay
from slurm_gpumem.simulation.trace_file import read_trace
from slurm_gpumem.simulation.types import SimJob

FORMATS: Dict[str, Callable[[Path], List[SimJob]]] = {"gpumem": read_trace, "replay": read_replay, **PUBLIC}
_HEAD = 65_536


def load_trace(path: Path, name: Optional[str] = None) -> List[SimJob]:
    """The jobs of a file in the named format, or in the one that its content shows."""
    jobs = FORMATS[name or format_of(path)](path)
    if not jobs:
        raise UsageError(f"{path}: no job in it")
    return jobs


def format_of(path: Path) -> str:
    """The format by the first lines; our own where nothing else shows."""
    try:
        with open(path, encoding="utf-8-sig", errors="replace") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    if is_replay(head):
        return "replay"
    return public_format(head) or "gpumem"
