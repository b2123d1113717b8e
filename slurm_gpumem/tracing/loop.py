"""The training loop that is traced: as users write it, including loop variables that stay alive."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from slurm_gpumem.summaries.trace_types import PARAMETER
from slurm_gpumem.tracing.assemble import Seen
from slurm_gpumem.tracing.places import own_parameters
from slurm_gpumem.tracing.recorder import Recorder

AUTOCAST = {"amp-fp16": torch.float16, "amp-bf16": torch.bfloat16}


@dataclass
class Inputs:
    """One step's data, as the model's forward takes it, and what its output is compared with."""

    args: Tuple[Any, ...] = ()
    kwargs: Dict[str, Any] = field(default_factory=dict)
    target: Any = None
    bare: bool = False
    """Whether the only argument was given alone, not in a tuple."""

    def tensors(self) -> List[Tensor]:
        """Every tensor in it."""
        found: List[Tensor] = []
        waiting: List[Any] = [self.args, self.kwargs, self.target]
        while waiting:
            item = waiting.pop()
            if isinstance(item, Tensor):
                found.append(item)
            elif isinstance(item, (list, tuple)):
                waiting.extend(item)
            elif isinstance(item, dict):
                waiting.extend(item.values())
        return found


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


def run(plan: Plan, recorder: Recorder) -> Seen:
    """Train on meta tensors, one step for each batch size."""
    model, optimizer = plan.model, plan.optimizer
    half = AUTOCAST.get(plan.precision)
    recorder.enter("setup", 0)
    note_model(model, recorder)
    scale: Optional[Tensor] = None
    # Loop variables stay alive until they are assigned again, as in users' scripts.
    inputs = out = loss = None
    with recorder:
        for step, size in enumerate(plan.batches, 1):
            for micro in range(plan.accumulate):
                recorder.enter("forward", step)
                recorder.places.reset()
                with recorder.kernels.paused():
                    inputs = plan.make(size)
                mark(recorder, inputs.tensors(), "inputs")
                if micro == 0 and optimizer is not None:
                    optimizer.zero_grad()
                with torch.autocast("cuda", half) if half else nullcontext():
                    out = model(*inputs.args, **inputs.kwargs)
                    loss = plan.loss(out, inputs.target)
                recorder.places.writing = False
                if optimizer is None:
                    continue
                recorder.enter("backward", step)
                if plan.precision == "amp-fp16":
                    scale = torch.full((), 1024.0, device="meta") if scale is None else scale
                    (loss * scale).backward()
                else:
                    loss.backward()
                mark(
                    recorder,
                    [p.grad for p in model.parameters() if p.grad is not None],
                    "gradients",
                )
            if optimizer is not None:
                recorder.enter("optimizer", step)
                if scale is not None:
                    _unscale(scale)
                optimizer.step()
                mark(recorder, states_of(optimizer), "optimizer")
            if plan.evaluate and step > 1:
                recorder.enter("evaluate", step)
                _evaluate(plan, size, half)
        # Read before the loop's variables go out of scope.
        return seen_by(recorder)


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


def _unscale(scale: Tensor) -> None:
    """What GradScaler allocates before the optimizer's step: a few numbers."""
    inverse = scale.double().reciprocal().float()
    found = torch.full((), 0.0, device="meta")
    del inverse, found


@torch.no_grad()
def _evaluate(plan: Plan, size: int, half: Optional[torch.dtype]) -> None:
    plan.model.eval()
    inputs = plan.make(size)
    with torch.autocast("cuda", half) if half else nullcontext():
        for _ in range(2):
            plan.model(*inputs.args, **inputs.kwargs)
    plan.model.train()
