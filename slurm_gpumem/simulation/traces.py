"""Traces of every format that is known, found by its content."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Dict, List, Optional

from slurm_gpumem.errors import UsageError
from slurm_gpumem.simulation import trace_file
from slurm_gpumem.simulation.types import SimJob

FORMATS: Dict[str, Callable[[Path], List[SimJob]]] = {"gpumem": trace_file.read_trace}


def load_trace(path: Path, name: Optional[str] = None) -> List[SimJob]:
    """The jobs of a file in the named format, or in the one that its content shows."""
    jobs = FORMATS[name or "gpumem"](path)
    if not jobs:
        raise UsageError(f"{path}: no job in it")
    return jobs
