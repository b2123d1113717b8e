"""Steps that are rebuilt from the texts of real tools are what they were, to each operation and tensor.

So are their estimates, to the last word.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_gpumem.errors import GpumemError
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.reader import parse
from tests.summaries.saved_summaries import saved_summaries
from tests.support.kept import assert_kept
from tests.support.kept_steps import whole_step

_SAVED = [saved for saved in saved_summaries().values() if saved.tool != "keras"]
_JOBS = (
    TrainingJob(24),
    TrainingJob(8, optimizer="sgd", precision="amp-bf16", checkpointing=True, channels_last=True),
    TrainingJob(3, optimizer="adafactor", precision="bf16", loss="none", grad_accumulation=2),
)


def _step(text: str, origin: str, job: TrainingJob) -> str:
    try:
        return whole_step(parse(text, origin=origin), job)
    except GpumemError as error:
        return str(error)


@pytest.mark.parametrize("part", range(4))
def test_a_step_is_rebuilt_as_it_was(part: int) -> None:
    # A model has several texts: it meets each job.
    steps = {
        one.stem: _step(one.text, one.stem, _JOBS[number % len(_JOBS)])
        for number, one in list(enumerate(_SAVED))[part::4]
    }
    assert_kept(Path(__file__).parent / "data" / "steps.json", steps)
