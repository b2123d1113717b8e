"""`summarize(model, batch, optimizer=…)`: a model's layers and the trace of its first training steps."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any, Callable, List, Optional

import torch
from torch import nn

from slurm_gpumem.summaries.trace_types import TracedJob
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.tracing.cuda.autocast import autocast_on_meta
from slurm_gpumem.tracing.cuda.substitutes import cuda_substitutes
from slurm_gpumem.tracing.engine.assemble import assemble
from slurm_gpumem.tracing.engine.constants import known_constants
from slurm_gpumem.tracing.engine.device_to_host import formatted_tensors
from slurm_gpumem.tracing.engine.module_stack import Places, shapes
from slurm_gpumem.tracing.engine.recomputed import checkpointing_seen
from slurm_gpumem.tracing.engine.recorder import Recorder
from slurm_gpumem.tracing.engine.value_checks import EndlessLoop
from slurm_gpumem.tracing.engine.values import Guess
from slurm_gpumem.tracing.live_model import labels, losses, optimizers
from slurm_gpumem.tracing.live_model.batches import maker, require_size
from slurm_gpumem.tracing.live_model.described import precision_of, torch_version
from slurm_gpumem.tracing.live_model.loop import Inputs, Plan, Step, run
from slurm_gpumem.tracing.live_model.meta_model import meta_twin, unwrapped

STEPS = 3
_PURE = {"bf16": torch.bfloat16}
"""Precisions in which weights and inputs themselves have another type than fp32."""


_FAILURES = (RuntimeError, NotImplementedError, TypeError, ValueError, AssertionError)


def summarize(
    model: nn.Module,
    batch: Any,
    *,
    optimizer: optimizers.Given = "adam",
    loss: losses.Given = None,
    target: Any = None,
    precision: str = "fp32",
    batch_size: Optional[int] = None,
    grad_accumulation: int = 1,
    channels_last: bool = False,
    evaluate: bool = False,
    scalable: bool = True,
    step: Optional[Step] = None,
    name: str = "",
) -> ModelSummary:
    """Trace three training steps of `model` without running them.

    `batch` is what the model's forward takes (a tensor, a tuple by position, a dictionary by name), a data
    loader's (input, target) where forward takes one argument, or a function that makes a batch of a given
    size. The model is not changed; its copy on meta tensors is traced. `step` is the user's own training
    step, called with the copy, the batch and the optimizer.
    """
    model = unwrapped(model)
    if step is None and target is None and labels.is_pair(model, batch):
        batch, target = batch
        batch = batch if isinstance(batch, (tuple, list, dict)) else (batch,)
    size = require_size(batch, batch_size)
    asked = _Asked(
        model=model,
        make=maker(batch, target, size, _PURE.get(precision)),
        size=size,
        optimizer=optimizer,
        loss=loss,
        precision=precision,
        accumulate=grad_accumulation,
        channels_last=channels_last,
        evaluate=evaluate,
        scalable=scalable,
        step=step,
        name=name or type(model).__name__,
    )
    missing = None
    if step is None and loss is None and target is None and optimizer is not None:
        missing = labels.unfilled(model, asked.make(size))
    return _summary(asked) if missing is None else _with_labels(asked, missing)


def _with_labels(asked: _Asked, name: str) -> ModelSummary:
    """The summary with labels, if the model computes a loss from such; otherwise without, and a warning."""
    make = labels.filled(asked.make, name)
    if make is not None:
        with suppress(*_FAILURES):
            summary = _summary(replace(asked, make=make))
            if summary.trace is not None and " over " not in summary.trace.job.loss:
                return summary._replace(warnings=(*summary.warnings, *labels.warnings(name, "", "")))
    summary = _summary(asked)
    used = summary.trace.job.loss if summary.trace is not None else ""
    return summary._replace(warnings=(*summary.warnings, *labels.warnings("", name, used)))


def _summary(asked: _Asked) -> ModelSummary:
    """Traced with another guess at values, or for this batch size only, where it does not run otherwise."""
    guess = Guess()
    try:
        return _traced(asked, guess)
    except _FAILURES as error:
        if guess.used and not isinstance(error, EndlessLoop):
            # It checked a condition, got True for an unknown value, and raised an error: "labels too large?"
            with suppress(*_FAILURES):
                return _traced(asked, Guess(truth=False))
        if asked.scalable:
            # Sizes in the code itself (a graph, a table by rows): it runs with this batch only.
            with suppress(*_FAILURES):
                return _traced(replace(asked, scalable=False), Guess())
        raise


@dataclass(frozen=True)
class _Asked:
    """The arguments of `summarize`."""

    model: nn.Module
    make: Callable[[int], Inputs]
    size: int
    optimizer: optimizers.Given
    loss: losses.Given
    precision: str
    accumulate: int
    channels_last: bool
    evaluate: bool
    scalable: bool
    step: Optional[Step]
    name: str


def _traced(asked: _Asked, guess: Guess) -> ModelSummary:
    twin = meta_twin(asked.model)
    batches = _batches(asked.size, asked.scalable)
    if asked.precision in _PURE:
        twin = twin.to(_PURE[asked.precision])
    if asked.channels_last:
        twin = twin.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with ExitStack() as stack:
        stack.enter_context(optimizers.foreach_on_meta())
        places = stack.enter_context(Places(twin))
        autocast = stack.enter_context(autocast_on_meta())
        recorder = Recorder(places, autocast, guess)
        stack.enter_context(cuda_substitutes(recorder))
        stack.enter_context(known_constants())
        checkpointed = stack.enter_context(checkpointing_seen(recorder))
        stack.enter_context(formatted_tensors())
        optimizer = asked.optimizer
        chosen = None if optimizer is None else optimizers.make_optimizer(optimizer, asked.model, twin)
        loss = losses.Loss(asked.loss)
        plan = Plan(
            model=twin,
            make=asked.make,
            loss=loss,
            optimizer=chosen,
            batches=batches,
            precision=asked.precision,
            accumulate=asked.accumulate,
            evaluate=asked.evaluate,
            step=asked.step,
        )
        seen = run(plan, recorder)
        first_inputs = shapes(asked.make(asked.size).args)
    job = TracedJob(
        batch=asked.size,
        optimizer="" if chosen is None else optimizers.name_of(optimizer, chosen),
        precision=precision_of(twin, asked.precision),
        grad_accumulation=asked.accumulate,
        checkpointing=bool(checkpointed),
        channels_last=asked.channels_last,
        evaluate=asked.evaluate,
        loss=loss.what or "the step's own",
        torch=torch_version(),
    )
    parameters = {id(p): p for p in twin.parameters()}.values()
    return ModelSummary(
        format="gpumem",
        layers=places.layers(),
        name=asked.name,
        batch=asked.size,
        input_shapes=first_inputs,
        total_params=sum(p.numel() for p in parameters),
        trainable_params=sum(p.numel() for p in parameters if p.requires_grad),
        trace=assemble(seen, job, batches),
        warnings=tuple(recorder.warnings),
    )


def _batches(size: int, scalable: bool) -> List[int]:
    return [size] * (STEPS - 1) + [2 * size if scalable else size]
