"""Steps rebuilt of the real tools' texts, whole and damaged, and estimates of a trace, under drawn settings.

Each is what it was, to each operation and tensor; where a change is meant, WRITE=1 keeps it.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Dict

import pytest

from slurm_gpumem import estimate
from slurm_gpumem.errors import GpumemError
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.registry import ESTIMATORS
from slurm_gpumem.estimators.types import (
    INPUT_DTYPES,
    LOSSES,
    MODULE_LOADING,
    OPTIMIZERS,
    PRECISIONS,
    TrainingJob,
)
from slurm_gpumem.summaries.reader import parse, read_summary
from slurm_gpumem.utilization.predict import estimate_with_utilization
from tests.summaries import fuzz
from tests.summaries.saved_summaries import saved_summaries
from tests.support.kept import assert_kept, plain
from tests.support.kept_steps import whole_step

KEPT = Path(__file__).parent / "data" / "kept_steps.json"
STEMS = sorted(stem for stem, saved in saved_summaries().items() if saved.tool != "keras")
GPUS = ("a100", "v100", "h200", "t4", "l40s", "b200")
TORCH = ("", "1.13.1", "2.1.0+cu118", "2.6.0", "2.9.1")


def _job(dice: random.Random) -> Dict[str, Any]:
    choose = dice.choice
    drawn = {
        "batch_size": choose((1, 2, 7, 32, 129, 1024)), "optimizer": choose(OPTIMIZERS),
        "precision": choose(PRECISIONS), "gpus": choose((1, 1, 1, 4)), "grad_accumulation": choose((1, 1, 4)),
        "checkpointing": dice.random() < 0.2, "channels_last": dice.random() < 0.2, "loss": choose(LOSSES),
        "input_dtype": choose(INPUT_DTYPES), "module_loading": choose(MODULE_LOADING), "torch": choose(TORCH),
    }  # fmt: skip
    return {name: value for name, value in drawn.items() if name == "batch_size" or dice.random() < 0.5}


@pytest.mark.parametrize("part", range(8))
def test_a_step_is_rebuilt_as_it_was(part: int) -> None:
    said: Dict[str, str] = {}
    for place in range(part, len(STEMS), 8):
        dice = random.Random(place)
        summary = parse(saved_summaries()[STEMS[place]].text, origin="x")
        for _ in range(2):
            try:
                told = whole_step(summary, TrainingJob(**_job(dice)))
            except GpumemError as error:
                told = str(error)
            name = f"step {part} {place // 64}"
            said[name] = said.get(name, "") + told
    assert_kept(KEPT, said)


@pytest.mark.parametrize("part", range(4))
def test_a_damaged_text_is_estimated_as_it_was(part: int) -> None:
    said: Dict[str, str] = {}
    for seed in range(5000 + part, 5400, 4):
        dice = random.Random(seed)
        try:
            summary = parse(fuzz.mutate(seed)[1], origin="x")
            gpu, estimator = find_gpu(dice.choice(GPUS)), dice.choice(sorted(ESTIMATORS))
            found = estimate_with_utilization(estimator, summary, TrainingJob(**_job(dice)), gpu, None)
            told = repr(plain(found))
        except GpumemError as error:
            told = str(error)
        name = f"damaged {part} {seed // 50}"
        said[name] = said.get(name, "") + f"{seed}: {told}\n"
    assert_kept(KEPT, said)


def test_a_trace_is_estimated_as_it_was() -> None:
    summary = read_summary(Path(__file__).resolve().parents[2] / "docs" / "examples" / "train.json")
    said: Dict[str, str] = {}
    for seed in range(300):
        dice = random.Random(seed)
        gpu, coverage = dice.choice(GPUS), dice.choice((None, None, 0.5, 0.99))
        try:
            told = repr(plain(estimate(summary, gpu=gpu, coverage=coverage, **_job(dice))))
        except GpumemError as error:
            told = str(error)
        name = f"trace {seed // 25}"
        said[name] = said.get(name, "") + f"{seed}: {told}\n"
    assert_kept(KEPT, said)
