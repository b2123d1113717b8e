"""Trainers of libraries get their true numbers where a loader leaves batches out."""

from __future__ import annotations

from types import FrameType, SimpleNamespace
from typing import Any, Dict, List

import pytest

from tests.support.needs import needs_torch

pytestmark = needs_torch
CALL = """
import sys
def {name}(self, data_fetcher=None, step={step}): return sys._getframe()
"""


def _frame(module: str, name: str, *given: Any, step: Any = None) -> FrameType:
    """A frame as a library's function has it while it asks for a batch."""
    known: Dict[str, Any] = {"__name__": module}
    exec(CALL.format(name=name, step=step), known)
    found: FrameType = known[name](*given)
    return found


def _hugging_face(accumulation: int = 1) -> SimpleNamespace:
    steps = SimpleNamespace(value="steps")
    args = SimpleNamespace(
        gradient_accumulation_steps=accumulation,
        logging_strategy=None,
        save_strategy=steps,
        eval_strategy=steps,
    )
    state = SimpleNamespace(global_step=3, max_steps=3000, save_steps=1000, eval_steps=500)
    return SimpleNamespace(args=args, state=state, callback_handler=SimpleNamespace(callbacks=[]))


def _left_out(frame: FrameType, left: int) -> int:
    from slurm_gpumem.tracing.follow import trainers

    trainer = trainers.asking(frame, pytest.fail)
    assert trainer is not None
    return trainer.left_out(left)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_steps_of_the_trainer_are_those_at_which_it_evaluates_and_saves_then_the_last(
    accumulation: int,
) -> None:
    trainer = _hugging_face(accumulation)
    stops = []
    while trainer.state.global_step < 3000:
        _left_out(_frame("transformers.trainer", "get_batch_samples", trainer, step=7), 0)
        trainer.state.global_step += 1
        stops.append(trainer.state.global_step)
    assert {500, 1000, 2000, 2999, 3000} & set(stops) == {500, 1000, 2000, 3000}
    assert len(stops) < 10


def test_an_epoch_of_the_trainer_goes_to_its_last_batch_and_no_further() -> None:
    from slurm_gpumem.tracing.follow.loops import known_in

    trainer = _hugging_face(4)
    frame = _frame("transformers.trainer", "get_batch_samples", trainer, step=11)
    assert _left_out(frame, 69) == 68
    assert trainer.state.global_step == 3 + 17
    assert known_in(frame)["step"] == 11 + 68


def test_a_trainer_without_a_last_step_does_not_know_its_end() -> None:
    from slurm_gpumem.tracing.follow import trainers

    trainer = _hugging_face()
    for steps, known in ((3000, True), (-1, False)):
        trainer.state.max_steps = steps
        asking = trainers.asking(_frame("transformers.trainer", "get_batch_samples", trainer), pytest.fail)
        assert asking is not None
        assert asking.knows_its_end == known


def test_an_evaluation_of_the_trainer_counts_nothing() -> None:
    from slurm_gpumem.tracing.follow import trainers

    assert (
        trainers.asking(_frame("transformers.trainer", "evaluation_loop", _hugging_face()), pytest.fail)
        is None
    )


@pytest.mark.parametrize(("left", "steps"), [(400, 59), (30, 29)])
def test_lightning_goes_on_to_its_next_validation_or_the_end_of_its_epoch(left: int, steps: int) -> None:
    numbers = dict.fromkeys(("ready", "started", "processed", "completed"), 0)
    current, total = SimpleNamespace(**numbers), SimpleNamespace(**numbers)
    done = SimpleNamespace(current=SimpleNamespace(**numbers), total=SimpleNamespace(**numbers))
    trainer = SimpleNamespace(
        accumulate_grad_batches=1,
        callbacks=[SimpleNamespace(_every_n_train_steps=450)],
        enable_validation=True,
        lightning_module=SimpleNamespace(automatic_optimization=True),
        num_training_batches=400,
        val_check_batch=60,
    )
    loop = SimpleNamespace(
        trainer=trainer,
        batch_progress=SimpleNamespace(current=current, total=total),
        automatic_optimization=SimpleNamespace(
            optim_progress=SimpleNamespace(optimizer=SimpleNamespace(step=done))
        ),
        global_step=0,
        max_steps=3000,
    )
    fetcher = SimpleNamespace(fetched=1)
    frame = _frame("lightning.pytorch.loops.training_epoch_loop", "advance", loop, fetcher)
    assert _left_out(frame, left) == steps
    assert (current.ready, total.completed, done.total.completed, fetcher.fetched) == (steps,) * 3 + (
        1 + steps,
    )


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("transformers.trainer", "_inner_training_loop"),
        ("lightning.pytorch.loops.training_epoch_loop", "advance"),
    ],
)
def test_a_version_with_other_names_is_said_and_not_followed(module: str, name: str) -> None:
    from slurm_gpumem.tracing.follow import trainers

    said: List[str] = []
    assert trainers.asking(_frame(module, name, SimpleNamespace(state=None)), said.append) is None
    assert said == [module.partition(".")[0]]
