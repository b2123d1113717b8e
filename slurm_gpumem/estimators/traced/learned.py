"""The learned request of traced estimates, fitted on traces; their peaks stay as replayed."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, exp
from typing import Optional, Sequence

from slurm_gpumem.data import data_path
from slurm_gpumem.estimators.corrected.choice import FROM_TRACE, request_for
from slurm_gpumem.estimators.corrected.estimator import REFERENCE_CONTEXT_MIB as REFERENCE_CONTEXT_MIB
from slurm_gpumem.estimators.corrected.trees import Correction, load
from slurm_gpumem.estimators.traced.features import NAMES

FILE = "trace-correction.json"
GROUP = "trace"


@lru_cache(maxsize=1)
def packaged() -> Optional[Correction]:
    """The package's own; None where it has none."""
    path = data_path("models", FILE)
    return load(path, NAMES) if path.exists() else None


def request_of(total_mib: float, features: Sequence[float], moved_mib: float, correction: Correction) -> int:
    """MiB of request with the reference context.

    A trace counts a model's own tensors, so models unlike the measured ones get no wider request: what the
    spread is for (workspaces, fragmentation) is in the features. `moved_mib` is what the job's own context on
    the measured GPU holds beyond the reference's.
    """
    spread = exp(correction.spread.predict([*features, 0.0]))
    return ceil(request_for(total_mib, moved_mib, spread, correction.policies[GROUP], FROM_TRACE))
