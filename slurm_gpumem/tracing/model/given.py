"""What a request names in the user's code: a model, batches, a loss, an optimizer, a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Optional, Tuple

import torch
from torch import nn

from slurm_gpumem.errors import TargetError
from slurm_gpumem.tracing.model import batches
from slurm_gpumem.tracing.model.build import Builder, Several, checkpoint_blocks, without_downloads
from slurm_gpumem.tracing.model.inputs import Inputs, on_gpu
from slurm_gpumem.tracing.model.load import as_many_as_it_takes, call, find_callable
from slurm_gpumem.tracing.model.losses import main_tensor
from slurm_gpumem.tracing.model.spec import NO_OPTIMIZER, TraceRequest
from slurm_gpumem.tracing.script.tracer import Tracer


class OfCode:
    """A training of what a request names in the user's code."""

    scalable = True

    def __init__(self, request: TraceRequest) -> None:
        self._request = request
        self.gradients = request.optimizer != NO_OPTIMIZER

    def model(self, enter: Callable[[str], None], tracer: Tracer) -> Tuple[nn.Module, str]:
        """The model, and where it was built."""
        without_downloads(tracer.note)
        builder = Builder(self._request, enter, tracer.note)
        with tracer.recorder.paused():
            model, built_on = builder.build()
        model.train(self.gradients)
        if self._request.checkpointing:
            tracer.note(checkpoint_blocks(model))
        return model, built_on

    def batches(
        self, model: nn.Module, floats: Optional[torch.dtype], tracer: Tracer
    ) -> Callable[[int], Inputs]:
        """A function that makes a batch of a size on the GPU; fp32 numbers become `floats`, if given."""
        request = self._request
        if request.batch_callable is not None:
            function, label = find_callable(request.batch_callable)
            own_step = request.step_callable is not None
            return lambda size: on_gpu(
                _from_callable(function, label, size, own_step), tracer.recorder, floats
            )
        first = batches.make_batch(request, model)
        if first.said:
            tracer.note(first.said)

        def make(size: int) -> Inputs:
            made = batches.make_batch(replace(request, batch_size=size), model)
            target = None
            if request.target_input is not None:
                target = batches.tensor(request.target_input, size, torch.int64)
            inputs = Inputs(tuple(made.args), made.kwargs, target, len(made.args) == 1)
            found: Inputs = on_gpu(inputs, tracer.recorder, floats)
            return found

        return make

    def loss(self) -> Any:
        """Its name, or a function of output and target; None: by what the model returns."""
        return given_loss(self._request)

    def optimizer(self) -> Any:
        """Its name, or a function that makes it of parameters."""
        return given_optimizer(self._request)

    def step(self) -> Optional[Callable[..., Any]]:
        """The user's own step, if there is one."""
        return given_step(self._request)


def _from_callable(function: Any, label: str, size: int, own_step: bool) -> Inputs:
    made = call(function, label, {}, *as_many_as_it_takes(function, size))
    if isinstance(made, dict):
        return Inputs((), {str(name): value for name, value in made.items()})
    if isinstance(made, torch.Tensor):
        return Inputs((made,), bare=True)
    if isinstance(made, (tuple, list)) and made:
        if not own_step and len(made) == 2:
            # What a data loader returns: the input and its target.
            first, target = made
            if isinstance(first, dict):
                return Inputs((), first, target)
            return Inputs(first if isinstance(first, tuple) else (first,), {}, target)
        return Inputs(tuple(made))
    what = "nothing (None)" if made is None else f"a {type(made).__name__}"
    raise TargetError(
        f"{label} returned {what}; a batch is a tensor, a tuple (input, target) or a dictionary"
    )


def given_optimizer(request: TraceRequest) -> Any:
    """Its name, or a function that makes it of parameters."""
    if request.optimizer_callable is None:
        return request.optimizer
    function, label = find_callable(request.optimizer_callable)

    def make(parameters: Any) -> torch.optim.Optimizer:
        made = call(function, label, {}, *as_many_as_it_takes(function, parameters))
        if not isinstance(made, torch.optim.Optimizer):
            raise TargetError(f"{label} returned a {type(made).__name__}, not a torch.optim.Optimizer")
        return made

    return make


def given_step(request: TraceRequest) -> Optional[Callable[..., Any]]:
    """The user's own step, if there is one."""
    if request.step_callable is None:
        return None
    function, label = find_callable(request.step_callable)
    if not callable(function):
        raise TargetError(f"{label} is not a function; a step takes (model, batch, optimizer)")

    def step(model: Any, batch: Any, optimizer: Any) -> Any:
        model = model.made if isinstance(model, Several) else model
        return function(*as_many_as_it_takes(function, model, batch, optimizer))

    return step


def given_loss(request: TraceRequest) -> Any:
    """Its name, or a function of output and target; None: by what the model returns."""
    if request.loss_callable is None:
        return None if request.loss == "auto" else _MORE_LOSSES.get(request.loss, request.loss)
    function, label = find_callable(request.loss_callable)
    if isinstance(function, type):
        function = call(function, label, {})

    def loss(output: Any, target: Any) -> Any:
        given = [output] if target is None else [output, target]
        return function(*as_many_as_it_takes(function, *given))

    loss.__name__ = label
    return loss


def bce(output: Any, target: Any) -> Any:
    """Binary cross-entropy of every number of the output."""
    prediction = main_tensor(output)
    wanted = torch.zeros_like(prediction) if target is None else target.to(prediction.dtype)
    return torch.nn.functional.binary_cross_entropy_with_logits(prediction, wanted)


def sum_of_losses(output: Any, target: Any) -> Any:
    """What detection models return during training: several losses by name."""
    values = output.values() if isinstance(output, dict) else [main_tensor(output)]
    return sum(value.sum() for value in values)


_MORE_LOSSES = {"bce": bce, "sum": sum_of_losses}
