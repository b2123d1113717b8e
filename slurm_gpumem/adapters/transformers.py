"""Callbacks for Hugging Face's Trainer: `Trainer(..., callbacks=[SummaryCallback("summary.json"), ...])`.

SummaryCallback: the model is traced with the first batch that the Trainer feeds it, and its optimizer. Next
time: `gpusbatch --model summary.json job.sh`.

SlotCallback, with `trainer.train(resume_from_checkpoint=resume_file())`: time slots (gpumem docs slots).
"""

from __future__ import annotations

import time
from functools import wraps
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Union

from transformers import Trainer, TrainerCallback

from slurm_gpumem.adapters.first_step import without_values, write_once
from slurm_gpumem.adapters.slot_run import SlotRun
from slurm_gpumem.adapters.slot_run import resume_file as resume_file
from slurm_gpumem.adapters.slots import agreed, barrier, discard, failed, problem_of
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.tracing.model.live import summarize


class SummaryCallback(TrainerCallback):  # type: ignore[misc]
    """Writes the summary where the model is about to be given its first batch."""

    def __init__(self, path: Union[str, Path] = "summary.json") -> None:
        self.path = path
        self._hook: Any = None
        self._done = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A Trainer's callbacks never see a batch: the model does."""
        if not state.is_world_process_zero or self._done:
            return

        def write(model: Any, inputs: Any, given: Dict[str, Any]) -> None:
            if self._done or not given or not model.training:
                return
            self._done = True
            self._hook.remove()  # the model is called again for the summary
            batch = without_values(given)
            write_once(self.path, lambda: _summary(args, batch, kwargs["model"], kwargs["optimizer"]))

        self._hook = kwargs["model"].register_forward_pre_hook(write, with_kwargs=True)


class SlotCallback(TrainerCallback):  # type: ignore[misc]
    """Has the Trainer save when the program is told, and ends it then; its own checkpoints count as well."""

    def __init__(self) -> None:
        self._run = SlotRun()
        self._told_at: Optional[float] = None
        _guard_saves()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Say that this program can save."""
        if state.is_world_process_zero:
            self._run.announce()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ask for a checkpoint of this step."""
        if agreed(state.global_step, self._run.told)[0]:
            self._told_at, control.should_save = time.time(), True

    def saves(self, save: Callable[[], None], args: Any, state: Any) -> None:
        """If the Trainer cannot save at the slot's end, nothing of it stays and the training goes on."""
        if self._told_at is None:
            save()
        elif failed(state.global_step, problem_of(save)):
            discard(_checkpoint(args, state))
            self._told_at = None
            self._run.run_on()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A whole checkpoint is there, unless it failed."""
        path = _checkpoint(args, state)
        if self._run.folder is not None and state.is_world_process_zero and path.is_dir():
            self._run.saved(path, state.global_step, self._told_at or time.time())
        if self._told_at is not None:
            self._run.leave(first=state.is_world_process_zero, meet=barrier)


def _checkpoint(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _guard_saves() -> None:
    """Callbacks are only asked after a save: one that raises ends the training before."""
    save = Trainer._save_checkpoint
    if hasattr(save, "__wrapped__"):
        return

    @wraps(save)
    def guarded(trainer: Any, *given: Any, **named: Any) -> None:
        def work() -> None:
            save(trainer, *given, **named)

        callbacks = [one for one in trainer.callback_handler.callbacks if isinstance(one, SlotCallback)]
        callbacks[0].saves(work, trainer.args, trainer.state) if callbacks else work()

    Trainer._save_checkpoint = guarded


def _summary(args: Any, batch: Dict[str, Any], model: Any, optimizer: Any) -> ModelSummary:
    precision = "amp-bf16" if args.bf16 else "amp-fp16" if args.fp16 else "fp32"
    return summarize(
        model,
        batch,
        # accelerate wraps it.
        optimizer=getattr(optimizer, "optimizer", optimizer),
        precision=precision,
        grad_accumulation=args.gradient_accumulation_steps,
    )
