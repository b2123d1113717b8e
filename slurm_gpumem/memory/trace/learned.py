"""The learned correction and bound of traced estimates: as the summary estimator's, fitted on traces."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, exp
from typing import List, Optional, Sequence, Tuple

from slurm_gpumem.data import data_path
from slurm_gpumem.memory.correction.trees import Correction, from_json, load, read_json
from slurm_gpumem.memory.trace.features import NAMES

FILE = "trace-correction.json"
FOLDS_FILE = "trace-correction-folds.json.gz"
GROUP = "trace"
REFERENCE_CONTEXT_MIB = 764
"""Context of the measured GPU: ratios are of whole processes there."""
_SLACK = 1e-9


@lru_cache(maxsize=1)
def packaged() -> Optional[Correction]:
    """The package's own; None where it has none."""
    path = data_path("models", FILE)
    return load(path, NAMES) if path.exists() else None


def load_folds() -> List[Correction]:
    """One correction a fold, each fitted without the models of that fold."""
    path = data_path("models", FOLDS_FILE)
    return [from_json(content, f"{path}, fold {n}", NAMES) for n, content in enumerate(read_json(path))]


def peak_and_request(
    total_mib: float, features: Sequence[float], correction: Correction
) -> Tuple[int, int, str]:
    """MiB of peak and request with the reference context, and what is beyond the measured range."""
    center = correction.center.predict(features)
    spread = exp(correction.spread.predict(features))
    bound = correction.bounds[GROUP]
    beyond = [
        name.replace("_", " ")
        for name, value, (low, high) in zip(NAMES, features, correction.ranges)
        if not low - _SLACK <= value <= high + _SLACK
    ]
    steps = bound.outside if beyond else bound.quantile
    peak = round(total_mib * exp(center))
    return peak, max(peak, ceil(total_mib * exp(center + steps * spread))), ", ".join(beyond[:3])
