"""`summarize(model, batch, optimizer=…)`: a model's layers and the trace of its first training steps."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, List, Optional

import torch
from torch import nn

from slurm_gpumem.model.live import losses, optimizers
from slurm_gpumem.model.live.assemble import assemble
from slurm_gpumem.model.live.autocast import autocast_on_meta
from slurm_gpumem.model.live.batches import maker, require_size
from slurm_gpumem.model.live.loop import Plan, run
from slurm_gpumem.model.live.meta_model import meta_twin, unwrapped
from slurm_gpumem.model.live.own_step import Step, run_own_step
from slurm_gpumem.model.live.places import Places, shapes
from slurm_gpumem.model.live.recorder import Recorder
from slurm_gpumem.model.live.substitutes import cuda_substitutes
from slurm_gpumem.model.trace_types import TracedJob
from slurm_gpumem.model.types import ModelSummary

STEPS = 3


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

    `batch` is what the model's forward takes (a tensor, a tuple in order, a dictionary by name) or a function
    that makes one of a given size. The model is not changed; its twin on meta tensors is traced. `step` is
    the user's own training step, called with the twin, the batch and the optimizer.
    """
    model = unwrapped(model)
    size = require_size(batch, batch_size)
    make = maker(batch, target, size)
    twin = meta_twin(model)
    if precision == "bf16":
        twin = twin.to(torch.bfloat16)
    if channels_last:
        twin = twin.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    batches = _batches(size, scalable)
    with ExitStack() as stack:
        stack.enter_context(optimizers.foreach_on_meta())
        places = stack.enter_context(Places(twin))
        recorder = Recorder(places, stack.enter_context(autocast_on_meta()))
        stack.enter_context(cuda_substitutes(recorder))
        chosen = None if optimizer is None else optimizers.make_optimizer(optimizer, model, twin)
        plan = Plan(
            model=twin,
            make=make,
            loss=losses.make_loss(loss),
            optimizer=chosen,
            batches=batches,
            precision=precision,
            accumulate=grad_accumulation,
            evaluate=evaluate,
        )
        seen = run(plan, recorder) if step is None else run_own_step(plan, step, recorder)
        first_inputs = shapes(make(size).args)
    job = TracedJob(
        batch=size,
        optimizer="" if chosen is None else optimizers.name_of(optimizer, chosen),
        precision=precision,
        grad_accumulation=grad_accumulation,
        channels_last=channels_last,
        evaluate=evaluate,
        loss=losses.name_of(loss),
        torch=str(torch.__version__),
    )
    trace = assemble(seen, job, "meta", batches)
    parameters = {id(p): p for p in twin.parameters()}.values()
    return ModelSummary(
        format="gpumem",
        layers=places.layers(),
        name=name or type(model).__name__,
        batch=size,
        input_shapes=first_inputs,
        total_params=sum(p.numel() for p in parameters),
        trainable_params=sum(p.numel() for p in parameters if p.requires_grad),
        trace=trace,
    )


def _batches(size: int, scalable: bool) -> List[int]:
    return [size] * (STEPS - 1) + [2 * size if scalable else size]
