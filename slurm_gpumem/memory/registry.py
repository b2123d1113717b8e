"""Estimators by name. Each is imported only when asked for."""

from __future__ import annotations

import importlib

from slurm_gpumem.errors import UnknownNameError
from slurm_gpumem.memory.types import Estimate, Estimator, Gpu, TrainingJob
from slurm_gpumem.model.types import ModelSummary

ESTIMATORS = {
    "corrected": "slurm_gpumem.memory.correction",
    "structural": "slurm_gpumem.memory.structural",
    "horus": "slurm_gpumem.memory.horus",
    "faketensor": "slurm_gpumem.memory.faketensor",
    "deepspeed": "slurm_gpumem.memory.deepspeed",
}
DEFAULT = "corrected"


def estimator_names() -> list[str]:
    """All estimators, the default first."""
    return [DEFAULT, *(name for name in ESTIMATORS if name != DEFAULT)]


def run(name: str, summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    """Estimate with the named estimator ("auto" for the default)."""
    chosen = DEFAULT if name == "auto" else name
    if chosen not in ESTIMATORS:
        raise UnknownNameError("estimator", name, estimator_names())
    function: Estimator = importlib.import_module(ESTIMATORS[chosen]).estimate
    return function(summary, job, gpu)
