"""The learned request of traced estimates, fitted on traces; their peaks stay as replayed."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, exp
from typing import Optional, Sequence, Tuple

from slurm_gpumem.data import data_path
from slurm_gpumem.estimators.corrected.choice import FROM_TRACE, request_for
from slurm_gpumem.estimators.corrected.estimator import REFERENCE_CONTEXT_MIB as REFERENCE_CONTEXT_MIB
from slurm_gpumem.estimators.corrected.trees import Correction, load
from slurm_gpumem.estimators.traced.features import NAMES

FILE = "trace-correction.json"
GROUP = "trace"
_SLACK = 1e-9


@lru_cache(maxsize=1)
def packaged() -> Optional[Correction]:
    """The package's own; None where it has none."""
    path = data_path("models", FILE)
    return load(path, NAMES) if path.exists() else None


def request_and_remark(
    total_mib: float, features: Sequence[float], moved_mib: float, correction: Correction
) -> Tuple[int, str]:
    """MiB of request with the reference context, and what is beyond the measured range.

    `moved_mib` is what the job's own context on the measured GPU holds beyond the reference's.
    """
    policy = correction.policies[GROUP]
    spread = exp(correction.spread.predict([*features, 0.0]))
    beyond = [
        name.replace("_", " ")
        for name, value, (low, high) in zip(NAMES, features, correction.ranges)
        if not low - _SLACK <= value <= high + _SLACK
    ]
    wide = spread * policy.wider if beyond else spread
    return ceil(request_for(total_mib, moved_mib, wide, policy, FROM_TRACE)), ", ".join(beyond[:3])
