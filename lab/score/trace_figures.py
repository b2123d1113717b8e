"""What traces of the measured runs came to, kept so that scoring needs no tracing: TRACE_FIGURES.

`python -m lab.score.trace_score` writes it from a folder of traces.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Tuple

from lab.places import TRACE_FIGURES


@dataclass(frozen=True)
class Traced:
    """One measured run as its trace has it."""

    key: str
    model: str
    allocated_bytes: int
    reserved_bytes: int
    context_mib: int
    seconds: float
    """CPU time of the trace."""
    features: Tuple[float, ...]


def load_figures(path: Path = TRACE_FIGURES) -> Dict[str, Traced]:
    """By the run's key; empty where the file is not."""
    if not path.exists():
        return {}
    with gzip.open(path, "rt") as file:
        rows = [json.loads(line) for line in file]
    return {row["key"]: Traced(**{**row, "features": tuple(row["features"])}) for row in rows}
