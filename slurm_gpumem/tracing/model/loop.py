"""The training loop that is traced: as users write it, including loop variables that stay alive."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Callable, ContextManager, Iterator, List, Optional, Sequence

import torch
from torch import Tensor, nn

from slurm_gpumem.summaries.trace_types import PARAMETER
from slurm_gpumem.tracing.engine.assemble import Seen
from slurm_gpumem.tracing.engine.module_stack import own_parameters
from slurm_gpumem.tracing.engine.recorder import Recorder
from slurm_gpumem.tracing.model.inputs import Inputs

Step = Callable[[Any, Any, Any], Any]
"""Called with the model, the batch and the optimizer; may return the loss and leave the rest to us."""
AUTOCAST = {"amp-fp16": torch.float16, "amp-bf16": torch.bfloat16}


@dataclass(frozen=True)
class Plan:
    """What to trace."""

    model: nn.Module
    make: Callable[[int], Inputs]
    loss: Callable[[Any, Any], Tensor]
    optimizer: Optional[torch.optim.Optimizer]
    batches: Sequence[int]
    """Batch size of each step."""
    precision: str = "fp32"
    accumulate: int = 1
    evaluate: bool = False
    step: Optional[Step] = None
    """The user's own, instead of the usual one."""
    trained: Callable[[], Any] = lambda: None
    """Something that is another after each backward pass and each step of an optimizer."""


def steps(plan: Plan) -> Iterator[int]:
    """Train: yields the number of each step where it begins, and the next number behind the last step.

    What was seen is to be read there: until then the loop's variables are alive, as in users' scripts.
    """
    yield from _usual_steps(plan) if plan.step is None else _own_steps(plan, plan.step)


def _usual_steps(plan: Plan) -> Iterator[int]:
    model, optimizer = plan.model, plan.optimizer
    scale: Optional[Tensor] = None
    inputs = out = loss = None
    for number, size in enumerate(plan.batches, 1):
        yield number
        for micro in range(plan.accumulate):
            inputs = plan.make(size)
            if micro == 0 and optimizer is not None:
                optimizer.zero_grad()
            with _autocast(plan):
                out = model(*inputs.args, **inputs.kwargs)
                loss = plan.loss(out, inputs.target)
            if optimizer is None:
                continue
            if plan.precision == "amp-fp16":
                scale = torch.full((), 1024.0, device=loss.device) if scale is None else scale
                (loss * scale).backward()
            else:
                loss.backward()
        if optimizer is not None:
            if scale is not None:
                _unscale(scale)
            optimizer.step()
        if plan.evaluate and number > 1:
            _evaluate(plan, size)
    yield len(plan.batches) + 1


def _own_steps(plan: Plan, step: Step) -> Iterator[int]:
    """What a step returns stays alive until the next one has returned, as in users' loops."""
    returned: Any = None
    batch: Any = None
    for number, size in enumerate(plan.batches, 1):
        yield number
        batch = as_given(plan.make(size))
        before = plan.trained()
        returned = step(plan.model, batch, plan.optimizer)
        loss = loss_in(returned)
        if loss is not None and plan.trained() == before and plan.optimizer is not None:
            loss.backward()
            plan.optimizer.step()
            plan.optimizer.zero_grad()
        del loss
    yield len(plan.batches) + 1


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


def _autocast(plan: Plan) -> ContextManager[Any]:
    half = AUTOCAST.get(plan.precision)
    return torch.autocast("cuda", half) if half else nullcontext()


def _unscale(scale: Tensor) -> None:
    """What GradScaler allocates before the optimizer's step: a few numbers."""
    inverse = scale.double().reciprocal().float()
    found = torch.full((), 0.0, device=scale.device)
    del inverse, found


@torch.no_grad()
def _evaluate(plan: Plan, size: int) -> None:
    plan.model.eval()
    inputs = plan.make(size)
    with _autocast(plan):
        for _ in range(2):
            plan.model(*inputs.args, **inputs.kwargs)
    plan.model.train()


def seen_by(recorder: Recorder) -> Seen:
    """What a recorder has noted so far."""
    return Seen(
        blocks=list(recorder.blocks),
        events=list(recorder.events),
        phases=list(recorder.phases),
        uses_conv=recorder.uses_conv,
        uses_matmul=recorder.uses_matmul,
        remarks=tuple(recorder.remarks),
        kernels=recorder.kernels.by_step,
    )


def note_model(model: nn.Module, recorder: Recorder, name: str = "") -> None:
    """Parameters and buffers in the order in which `model.to(device)` allocates them: children first."""
    for part, child in model.named_children():
        note_model(child, recorder, f"{name}.{part}" if name else part)
    parameters = own_parameters(model)
    if isinstance(model, nn.RNNBase) and not any(p.dtype == torch.bfloat16 for p in parameters):
        _note_flat(parameters, recorder, name)
    for parameter in parameters:
        recorder.note(parameter, PARAMETER, "weights", name)
    for buffer in model.buffers(recurse=False):
        recorder.note(buffer, "buffer", "buffers", name)


def _note_flat(parameters: Sequence[Tensor], recorder: Recorder, name: str) -> None:
    """A recurrent layer's weights are copied into one buffer once on the GPU; those in bf16 are not."""
    sizes = [parameter.numel() * parameter.element_size() for parameter in parameters]
    single = [recorder.take(size, PARAMETER, "weights", name) for size in sizes]
    recorder.take(sum(sizes), PARAMETER, "weights", name)
    for number, parameter in zip(single, parameters):
        recorder.drop(number)
        recorder.skip(parameter)


def mark(recorder: Recorder, tensors: Sequence[Tensor], category: str) -> None:
    """Set the category of tensors that have none yet."""
    for tensor in tensors:
        block = recorder.block_of(tensor)
        if block is not None and not block.category:
            block.category = category


def states_of(optimizer: torch.optim.Optimizer) -> List[Tensor]:
    """Every tensor that an optimizer keeps."""
    return [
        value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)
    ]
