"""Callbacks for Lightning: `Trainer(callbacks=[SummaryCallback("summary.json"), SlotCallback()])`.

SummaryCallback: the training step itself is traced, with the module's own loss and optimizer. Next time:
`gpusbatch --model summary.json job.sh`.

SlotCallback, with `trainer.fit(model, ckpt_path=resume_file())`: time slots (gpumem docs slots).
"""

from __future__ import annotations

import time
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any, List, Optional, Union

import torch

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:  # the same under its older name
    from pytorch_lightning import Callback, LightningModule, Trainer

from slurm_gpumem.adapters.first_step import without_values, write_once
from slurm_gpumem.adapters.slot_run import SlotRun
from slurm_gpumem.adapters.slot_run import resume_file as resume_file
from slurm_gpumem.adapters.slots import agreed, barrier, discard, failed, problem_of, replace_checkpoint
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.tracing.model.live import summarize
from slurm_gpumem.training_names import plain_name

_MIXED = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}


class SummaryCallback(Callback):  # type: ignore[misc]
    """Writes the summary before the first training batch, on the first process only."""

    def __init__(self, path: Union[str, Path] = "summary.json") -> None:
        self.path = path
        self._done = False

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """The first batch is there, and nothing has been allocated for it yet."""
        if self._done:
            return
        self._done = True
        if trainer.is_global_zero:
            write_once(self.path, lambda: _summary(trainer, pl_module, without_values(batch)))


class SlotCallback(Callback):  # type: ignore[misc]
    """Saves when the program is told and ends it then, in place of Lightning's own requeue."""

    def __init__(self) -> None:
        self._run = SlotRun()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning has set a handler that saves and requeues by itself: one of the two is enough."""
        if self._run.folder is not None:
            self._run.listen()
            if trainer.is_global_zero:
                self._run.announce()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *given: Any) -> None:
        """Save what is done so far."""
        folder, step = self._run.folder, trainer.global_step
        if folder is None or not agreed(step, self._run.told)[0]:
            return
        began, draft = time.time(), folder / f".step-{step}"
        problem = _save(trainer, draft)
        if problem is None and trainer.is_global_zero:
            problem = problem_of(lambda: replace_checkpoint(self._run, draft, step, began))
        if failed(step, problem):
            discard(draft)
            self._run.run_on()
        else:
            self._run.leave(first=trainer.is_global_zero, meet=barrier)


def _save(trainer: Trainer, path: Path) -> Optional[Exception]:
    """Have it saved; what went wrong. Whoever cannot write must not miss the barrier that follows, where the
    other processes would wait for it."""
    problems: List[Optional[Exception]] = []
    writer = trainer.strategy.checkpoint_io
    write = writer.save_checkpoint
    writer.save_checkpoint = lambda *args, **given: problems.append(problem_of(lambda: write(*args, **given)))
    try:
        problems.append(problem_of(lambda: trainer.save_checkpoint(path)))
    finally:
        del writer.save_checkpoint
    return next(filter(None, problems), None)


def _summary(trainer: Trainer, module: LightningModule, batch: Any) -> ModelSummary:
    precision = plain_name(str(trainer.precision), "precision")

    def step(twin: Any, inputs: Any, optimizer: torch.optim.Optimizer) -> None:
        # Lightning puts autocast around the step, not into it.
        with torch.autocast("cuda", dtype=_MIXED[precision]) if precision in _MIXED else nullcontext():
            found = twin.training_step(inputs, 0)
        loss = found["loss"] if isinstance(found, dict) else found
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    # A copy of the module would be one of its trainer, too; without one, self.log does nothing.
    attached, module._trainer = module._trainer, None
    try:
        with warnings.catch_warnings():
            # self.log says that there is no trainer.
            warnings.simplefilter("ignore")
            return summarize(
                module,
                batch,
                optimizer=trainer.optimizers[0],
                precision=precision,
                grad_accumulation=trainer.accumulate_grad_batches,
                batch_size=_size(batch),
                step=step,
                name=type(module).__name__,
            )
    finally:
        module._trainer = attached


def _size(batch: Any) -> int:
    """Samples in a batch: the first dimension of its first tensor."""
    while isinstance(batch, (dict, list, tuple)):
        batch = next(iter(batch.values() if isinstance(batch, dict) else batch))
    return int(batch.shape[0])
