"""Steps that are rebuilt from the texts of real tools are what they were, to each operation and tensor.

So are their estimates, to the last word.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_gpumem.errors import GpumemError
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.structural.estimator import estimate, simulate
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.reader import parse
from tests.summaries.saved_summaries import saved_summaries
from tests.support.kept import assert_kept

_SAVED = [saved for saved in saved_summaries().values() if saved.tool != "keras"]
_JOBS = {
    "plain": TrainingJob(24),
    "mixed": TrainingJob(8, optimizer="sgd", precision="amp-bf16", checkpointing=True, channels_last=True),
    "half": TrainingJob(3, optimizer="adafactor", precision="bf16", loss="none", grad_accumulation=2),
}


def _step(text: str, origin: str, job: TrainingJob) -> str:
    try:
        summary = parse(text, origin=origin)
        walk, played = simulate(summary, job, find_gpu("h200"))
    except GpumemError as error:
        return str(error)
    told = [value for value in vars(walk).values() if isinstance(value, (bool, int, str))]
    told += [*walk.assumptions, estimate(summary, job, find_gpu("h200"))._asdict(), played]
    return repr(_plain([list(vars(walk.tape).values()), told]))


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


@pytest.mark.parametrize("name", _JOBS)
@pytest.mark.parametrize("part", range(4))
def test_a_step_is_rebuilt_as_it_was(name: str, part: int) -> None:
    steps = {f"{name} {one.stem}": _step(one.text, one.stem, _JOBS[name]) for one in _SAVED[part::4]}
    assert_kept(Path(__file__).parent / "data" / "steps.json", steps)
