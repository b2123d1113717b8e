"""Where the laboratory's files are: it runs in a checkout only, so these are paths of the repository."""

from __future__ import annotations

from pathlib import Path

_LAB = Path(__file__).resolve().parent
_REPOSITORY = _LAB.parent

# Models of libraries, written by hand.
CATALOGUE = _LAB / "catalogue"

# The fits, which are shipped; estimates read them.
MODELS = _REPOSITORY / "models"
FITTED = MODELS / "fitted"

# What the fits are made from and judged by stays in the repository.
DATA = _LAB / "data"
GROUND_TRUTH = DATA / "ground-truth"
HANDWRITTEN = DATA / "handwritten"
BLIND_CHECKS = (DATA / "blind-check", *(DATA / f"blind-check-{number}" for number in (2, 3, 4)))
OPERATORS = GROUND_TRUTH / "operators.jsonl.xz"
NARROW = GROUND_TRUTH / "narrow.jsonl.xz"
NARROW_CHECK = GROUND_TRUTH / "narrow-check.jsonl.xz"
SETS = DATA / "utilization"
GPUUTILNET = SETS / "gpuutilnet.json.gz"
PREDICTIONS = DATA / "predictions"
SIMULATION = DATA / "simulation"
REAL_MODELS = DATA / "real-models.jsonl.xz"
SCRIPT_ROWS = DATA / "scripts"
OTHER_ESTIMATORS = DATA / "others" / "rows.jsonl.xz"
TRACE_FIGURES = DATA / "traces" / "figures.jsonl.gz"
OWN_TRACES = DATA / "traces" / "own-networks.jsonl.xz"
TRACE_KERNELS = DATA / "traces" / "kernels.jsonl.xz"
MARGIN_FOLDS = DATA / "folds" / "margins.json"
UTILIZATION_FOLDS = DATA / "folds" / "utilization.json.gz"
INTERFERENCE_FOLDS = DATA / "folds" / "interference.json"


def shown(path: Path) -> str:
    """A path of the repository as people read it: lab/data/ground-truth."""
    return str(path.relative_to(_REPOSITORY))
