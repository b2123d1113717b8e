"""A rebuilt training step, to each operation and tensor, with its estimate; kept whole."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any, Tuple

from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.structural.estimator import Replay, estimate, simulate
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.utilization.work import step_work
from tests.support.kept import assert_kept

_H200 = find_gpu("h200")
_KEPT = Path(__file__).resolve().parents[1] / "estimators" / "data" / "small_steps.json"


def whole_step(summary: ModelSummary, job: TrainingJob) -> str:
    """All of it, in words and figures."""
    walk, played = simulate(summary, job, _H200)
    told = [value for value in vars(walk).values() if isinstance(value, (bool, int, str))]
    found = estimate(summary, job, _H200)._asdict()
    work = step_work(walk.tape, job)
    parts = [list(vars(walk.tape).values()), told, list(walk.assumptions), found, played, work]
    return repr(_plain(parts))


def simulated(summary: ModelSummary, job: TrainingJob) -> Tuple[Walk, Replay]:
    """The step on an H200, which is as it was in all that a test does not look at, too."""
    key = sha256(repr((summary, job)).encode()).hexdigest()[:12]
    assert_kept(_KEPT, {key: whole_step(summary, job)})
    return simulate(summary, job, _H200)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.5g}"  # no digit that another processor might give otherwise
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if hasattr(value, "__slots__"):
        return [_plain(getattr(value, name)) for name in value.__slots__]
    return value
