"""The learned doubt of traced estimates, fitted on traces; their peaks stay as replayed."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, exp
from typing import Optional, Sequence, Tuple

from slurm_gpumem.data import data_path
from slurm_gpumem.estimators.traced.features import NAMES
from slurm_gpumem.estimators.trees import Correction, load
from slurm_gpumem.estimators.width import REFERENCE_CONTEXT_MIB as REFERENCE_CONTEXT_MIB
from slurm_gpumem.estimators.width import Width

FILE = "trace-correction.json"
GROUP = "trace"


@lru_cache(maxsize=1)
def packaged() -> Optional[Correction]:
    """The package's own; None where it has none."""
    path = data_path("models", FILE)
    return load(path, NAMES) if path.exists() else None


def spread_of(features: Sequence[float], correction: Correction) -> float:
    """How far above its replayed peak such a job's need may be, as a logarithm.

    A trace counts a model's own tensors, so models unlike the measured ones are not less sure: what the
    spread is for (workspaces, fragmentation) is in the features.
    """
    return exp(correction.spread.predict([*features, 0.0]))


def requests_of(total_mib: float, spread: float, batch: int, wide: Width) -> Tuple[int, ...]:
    """MiB of request at each coverage of LEVELS, with the reference context."""
    unit = wide.unit_mib(total_mib, spread, batch)
    return tuple(ceil(total_mib + step * unit) for step in wide.steps)
