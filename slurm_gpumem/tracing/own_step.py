"""Trace a training step written by the user; its phases are detected while it runs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator, List

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from slurm_gpumem.tracing.assemble import Seen
from slurm_gpumem.tracing.engine import backward_phases
from slurm_gpumem.tracing.loop import Inputs, Plan, mark, note_model, seen_by, states_of
from slurm_gpumem.tracing.recorder import Recorder

Step = Callable[[Any, Any, Any], Any]
"""Called with the model, the batch and the optimizer; may return the loss and leave the rest to us."""


def run_own_step(plan: Plan, step: Step, recorder: Recorder) -> Seen:
    """Run the user's step on meta tensors, once for each batch size."""
    model, optimizer = plan.model, plan.optimizer
    recorder.enter("setup", 0)
    note_model(model, recorder)
    # What a step returns stays alive until the next one has returned, as in users' loops.
    returned: Any = None
    batch: Any = None
    with recorder:
        for number, size in enumerate(plan.batches, 1):
            recorder.enter("forward", number)
            recorder.places.reset()
            with recorder.kernels.paused():
                inputs = plan.make(size)
            mark(recorder, inputs.tensors(), "inputs")
            batch = as_given(inputs)
            del inputs
            with _phases(recorder, number) as happened:
                returned = step(model, batch, optimizer)
                recorder.places.writing = False
                loss = loss_in(returned)
                if loss is not None and "backward" not in happened and optimizer is not None:
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                del loss
            mark(recorder, [p.grad for p in model.parameters() if p.grad is not None], "gradients")
            if optimizer is not None:
                mark(recorder, states_of(optimizer), "optimizer")
        return seen_by(recorder)


def as_given(inputs: Inputs) -> Any:
    """A batch in the form that a user's step expects: as their own function made it, or (input, target)."""
    if inputs.kwargs and not inputs.args:
        return inputs.kwargs
    values = [*inputs.args, *([] if inputs.target is None else [inputs.target])]
    return values[0] if len(values) == 1 and inputs.bare else tuple(values)


def loss_in(returned: Any) -> Any:
    """The loss in what a step returned, if backward can be called on it."""
    if isinstance(returned, Tensor):
        return returned if returned.requires_grad and returned.numel() == 1 else None
    if isinstance(returned, dict):
        return loss_in(returned.get("loss"))
    if isinstance(returned, (tuple, list)) and returned:
        return loss_in(returned[0])
    return None


@contextmanager
def _phases(recorder: Recorder, number: int) -> Iterator[List[str]]:
    """Detect where the backward pass and the optimizer's step begin and end."""
    happened: List[str] = []
    outer: List[str] = []

    def backward(*args: Any, **kwargs: Any) -> Any:
        happened.append("backward")
        return real_backward(*args, **kwargs)

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        # Gradients exist by now; marked before the optimizer's own tensors appear.
        for group in optimizer.param_groups:
            mark(recorder, [p.grad for p in group["params"] if p.grad is not None], "gradients")
        outer.append(recorder.phase)
        recorder.enter("optimizer", number)
        happened.append("optimizer")

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        mark(recorder, states_of(optimizer), "optimizer")
        # What comes next is not the optimizer's: rollouts, another model's turn.
        recorder.enter(outer.pop() if outer else "forward", number)

    handles = [
        register_optimizer_step_pre_hook(before),
        register_optimizer_step_post_hook(after),
    ]
    try:
        with backward_phases(lambda phase: recorder.enter(phase, number), lambda: recorder.phase):
            real_backward: Any = torch.autograd.backward
            torch.autograd.backward = backward
            yield happened
    finally:
        for handle in handles:
            handle.remove()
