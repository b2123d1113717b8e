"""A callback for Hugging Face's Trainer: `Trainer(..., callbacks=[SummaryCallback("summary.json")])`.

The model is traced with the first batch that the Trainer feeds it, and its optimizer. Next time:
`gpusbatch --model summary.json job.sh`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Optional, Union

from transformers import TrainerCallback

from slurm_gpumem.adapters.first_step import without_values, write_once
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.tracing.trace_model import summarize


class SummaryCallback(TrainerCallback):  # type: ignore[misc]
    """Notes what the model is given at the first step and writes the summary after it."""

    def __init__(self, path: Union[str, Path] = "summary.json") -> None:
        self.path = path
        self._batch: Optional[Dict[str, Any]] = None
        self._hook: Any = None
        self._done = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A Trainer's callbacks never see a batch: the model does."""
        if state.is_world_process_zero and not self._done:
            model = kwargs["model"]
            self._hook = model.register_forward_pre_hook(self._note, with_kwargs=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After the first step the optimizer is the one that is used."""
        if self._hook is None:
            return
        self._hook.remove()
        self._hook = None
        batch = self._batch
        if batch is not None and not self._done:
            self._done = True
            write_once(self.path, lambda: _summary(args, batch, kwargs["model"], kwargs["optimizer"]))

    def _note(self, model: Any, inputs: Any, given: Dict[str, Any]) -> None:
        if self._batch is None and given:
            self._batch = without_values(given)


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
