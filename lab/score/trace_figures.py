"""What traces of the measured runs came to, kept so that scoring needs no tracing: TRACE_FIGURES.

`python -m lab.score.trace_score` writes it from a folder of traces.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Dict

from lab.places import TRACE_FIGURES
from lab.rows import read_rows
from slurm_gpumem.estimators.margin import REFERENCE_CONTEXT_MIB, trace_spread
from slurm_gpumem.units import MIB


@dataclass(frozen=True)
class Traced:
    """One measured run as its trace has it."""

    key: str
    model: str
    allocated_bytes: int
    reserved_bytes: int
    fixed_bytes: int
    """Weights and optimizer states at the peak."""
    context_mib: int
    seconds: float
    """CPU time of the trace."""

    @property
    def total_mib(self) -> float:
        """The replayed peak with the reference context."""
        return self.reserved_bytes / MIB + REFERENCE_CONTEXT_MIB

    @property
    def spread(self) -> float:
        """As the traced estimate has it."""
        return trace_spread(self.fixed_bytes / MIB, self.total_mib)

    @property
    def moved_mib(self) -> int:
        """The estimated context less the reference's."""
        return self.context_mib - REFERENCE_CONTEXT_MIB


def load_figures(path: Path = TRACE_FIGURES) -> Dict[str, Traced]:
    """By the run's key."""
    return {row["key"]: Traced(**row) for row in read_rows(path)}
