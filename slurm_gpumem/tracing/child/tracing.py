"""Load, build, feed, trace: how the child process handles a request."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Callable, Dict, Tuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from slurm_gpumem.errors import TargetError
from slurm_gpumem.summaries.own import to_json
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.tracing.child import batches, hub
from slurm_gpumem.tracing.child.blame import own_words, user_line
from slurm_gpumem.tracing.child.checkpointing import checkpoint_blocks
from slurm_gpumem.tracing.child.cuda_calls import cuda_is_here
from slurm_gpumem.tracing.child.kept import files_read
from slurm_gpumem.tracing.child.load import as_many_as_it_takes, call, find_callable, own_files
from slurm_gpumem.tracing.child.pretrained import without_downloads
from slurm_gpumem.tracing.child.spec import HUGGING_FACE, NO_OPTIMIZER, TIMM, Target, TraceRequest
from slurm_gpumem.tracing.child.unknown import UnknownOperators, is_unknown_operator
from slurm_gpumem.tracing.constants import known_constants
from slurm_gpumem.tracing.known_values import KnownValues
from slurm_gpumem.tracing.loop import Inputs
from slurm_gpumem.tracing.losses import main_tensor
from slurm_gpumem.tracing.trace_model import NoValuesError, summarize

_META, _CPU = "meta", "cpu"


def trace_target(request: TraceRequest, line: Any, result: str) -> Dict[str, Any]:
    """Trace what was requested and write the summary; returns facts about the run."""
    with without_downloads(lambda note: line.say(note=note)):
        builder = Builder(request, line)
        model, device = builder.build()
        try:
            summary = _traced(request, model, line)
        except Exception as error:
            if device != _META or not _blames_meta(error):
                raise
            line.say(note=f"built on the CPU, because it reads values: {_reason(error)}")
            model, device = builder.build_on_cpu(), _CPU
            summary = _traced(request, model, line)
    if request.checkpointing and summary.trace is not None:
        job = replace(summary.trace.job, checkpointing=True)
        summary = replace(summary, trace=replace(summary.trace, job=job))
    line.enter("writing the summary")
    with open(result, "w", encoding="utf-8") as file:
        file.write(to_json(summary))
    way = summary.trace.way if summary.trace else ""
    loss = summary.trace.job.loss if summary.trace else ""
    return {"way": way, "built_on": device, "loss": loss, "files": files_read([*own_files(), *line.files])}


def _traced(request: TraceRequest, model: nn.Module, line: Any) -> ModelSummary:
    trains = request.optimizer != NO_OPTIMIZER
    if trains and not list(model.parameters()):
        raise TargetError(f"{request.target.label}: the model has no parameters; nothing to train")
    model.train(trains)
    if request.checkpointing:
        line.say(note=checkpoint_blocks(model))
    with cuda_is_here(_META), torch.set_grad_enabled(trains):
        make = _batches(request, model, line)
        optimizer = _optimizer(request, model)
        loss = _loss(request)
        _materialize(model, make, request.batch_size)
        step = _step(request)
        line.enter("tracing the model")

        def traced() -> ModelSummary:
            return summarize(
                model,
                make,
                batch_size=request.batch_size,
                optimizer=optimizer,
                loss=loss,
                precision=request.precision,
                grad_accumulation=request.grad_accumulation,
                channels_last=request.channels_last,
                evaluate=request.evaluate,
                step=step,
                name=_name(request.target) or _class_of(model),
            )

        return _with_unknown_operators(traced, line)


def _with_unknown_operators(traced: Callable[[], ModelSummary], line: Any) -> ModelSummary:
    """Trace; if an operator has no implementation without a GPU, trace again and assume its result."""
    try:
        return traced()
    except (RuntimeError, NotImplementedError, NoValuesError) as error:
        if not is_unknown_operator(error.__cause__ or error):
            raise
        unknown = UnknownOperators()
        with unknown:
            summary = traced()
        if not unknown.remarks or summary.trace is None:
            return summary
        for remark in unknown.remarks:
            line.say(note=remark)
        remarks = (*summary.trace.remarks, *unknown.remarks)
        return replace(summary, trace=replace(summary.trace, remarks=remarks))


def _materialize(model: nn.Module, make: Callable[[int], Inputs], size: int) -> None:
    """Give lazy layers their shapes with one forward pass, as users do before training."""
    if not any(is_lazy(p) for p in (*model.parameters(), *model.buffers())):
        return
    was = model.training
    with torch.no_grad():
        inputs = make(size)
        model.eval()(*inputs.args, **inputs.kwargs)
    model.train(was)


# -- The model -------------------------------------------------------------------------------------


class Builder:
    """Builds the model: on meta tensors if possible, otherwise with real (uninitialized) weights."""

    def __init__(self, request: TraceRequest, line: Any) -> None:
        self._request, self._line = request, line
        self._function: Any = None
        target = request.target
        self._label = target.label
        if target.kind not in (HUGGING_FACE, TIMM):
            line.enter(f"importing {os.path.basename(target.place)}")
            with cuda_is_here(_CPU):
                self._function, self._label = find_callable(target)
        line.enter("building the model")

    def build(self) -> Tuple[nn.Module, str]:
        """The model, and where it was built."""
        if isinstance(self._function, nn.Module):
            return self._function, _CPU
        try:
            with torch.device(_META), cuda_is_here(_META), known_constants(), KnownValues():
                return self._made(), _META
        except (TargetError, SystemExit):
            raise
        except Exception as error:
            if not _blames_meta(error):
                raise
            self._line.say(note=f"built on the CPU, because it reads values: {_reason(error)}")
        return self.build_on_cpu(), _CPU

    def build_on_cpu(self) -> nn.Module:
        """The model with values."""
        with cuda_is_here(_CPU):
            return self._made()

    def _made(self) -> nn.Module:
        target = self._request.target
        if target.kind == TIMM:
            made: Any = hub.build_timm(target.place, target.arguments)
        elif target.kind == HUGGING_FACE:
            made, said = hub.build_hugging_face(target.place, target.arguments, self._request.head)
            if said:
                self._line.say(note=said)
        else:
            made = call(self._function, self._label, target.arguments)
        return _checked(made, self._label)


def _reason(error: BaseException) -> str:
    """The line of the user's code that read, or torch's words."""
    return user_line(error) or own_words(error)


def _blames_meta(error: BaseException) -> bool:
    """Whether real tensors would fix the failure: missing values were read or moved."""
    text = f"{type(error).__name__} {error}".lower()
    return any(
        word in text for word in ("meta", "fake", "item()", "data-dependent", "expected all tensors", "numpy")
    )


def _checked(made: Any, label: str) -> nn.Module:
    if isinstance(made, nn.Module):
        return made
    parts = list(made.values()) if isinstance(made, dict) else made
    if isinstance(parts, (tuple, list)):
        models = [one for one in parts if isinstance(one, nn.Module)]
        if models:
            return models[0] if len(parts) == 1 else Several(made)
    what = "nothing (None)" if made is None else f"a {type(made).__name__}"
    raise TargetError(
        f"{label} returned {what}, not a torch.nn.Module.\n"
        "Name a class of models, or a function that returns one."
    )


class Several(nn.Module):
    """What a builder returned beside its model is on the GPU as well: a teacher, a discriminator.

    Its forward is the first model's; a user's step gets what the builder returned, in its form.
    """

    def __init__(self, made: Any) -> None:
        super().__init__()
        self.made = made
        values = made.values() if isinstance(made, dict) else made
        self.parts = nn.ModuleList(one for one in values if isinstance(one, nn.Module))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The first model's."""
        return self.parts[0](*args, **kwargs)


def _class_of(model: nn.Module) -> str:
    return type(model.parts[0] if isinstance(model, Several) else model).__name__


def _name(target: Target) -> str:
    if target.kind in (HUGGING_FACE, TIMM):
        place = target.place
        return os.path.basename(os.path.dirname(place)) or "config" if place.endswith(".json") else place
    return ""


# -- What it is fed --------------------------------------------------------------------------------


def _batches(request: TraceRequest, model: nn.Module, line: Any) -> Callable[[int], Inputs]:
    line.enter("making the batch")
    if request.batch_callable is not None:
        function, label = find_callable(request.batch_callable)
        return lambda size: _from_callable(function, label, size, request)
    first = batches.make_batch(request, model, _META)
    if first.said:
        line.say(note=first.said)

    def make(size: int) -> Inputs:
        made = batches.make_batch(replace(request, batch_size=size), model, _META)
        target = None
        if request.target_input is not None:
            target = batches.tensor(request.target_input, size, _META, torch.int64)
        return Inputs(tuple(made.args), made.kwargs, target, bare=len(made.args) == 1)

    return make


def _from_callable(function: Any, label: str, size: int, request: TraceRequest) -> Inputs:
    made = call(function, label, {}, *as_many_as_it_takes(function, size))
    if isinstance(made, Inputs):
        return made
    if isinstance(made, dict):
        return Inputs((), {str(k): _on_meta(v) for k, v in made.items()})
    if isinstance(made, torch.Tensor):
        return Inputs((_on_meta(made),), bare=True)
    if isinstance(made, (tuple, list)) and made:
        values = [_on_meta(one) for one in made]
        if request.step_callable is None and len(values) == 2:
            # What a data loader returns: the input and its target.
            first = values[0]
            if isinstance(first, dict):
                return Inputs((), first, values[1])
            return Inputs((first,) if not isinstance(first, tuple) else first, {}, values[1])
        return Inputs(tuple(values))
    what = "nothing (None)" if made is None else f"a {type(made).__name__}"
    raise TargetError(
        f"{label} returned {what}; a batch is a tensor, a tuple (input, target) or a dictionary"
    )


def _on_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(_META)
    if isinstance(value, dict):
        return {key: _on_meta(one) for key, one in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_on_meta(one) for one in value)
    return value


# -- How it is trained -----------------------------------------------------------------------------


def _optimizer(request: TraceRequest, model: nn.Module) -> Any:
    if request.optimizer == NO_OPTIMIZER:
        return None
    if request.optimizer_callable is None:
        return request.optimizer
    function, label = find_callable(request.optimizer_callable)

    def make(parameters: Any) -> torch.optim.Optimizer:
        made = call(function, label, {}, *as_many_as_it_takes(function, parameters))
        if not isinstance(made, torch.optim.Optimizer):
            raise TargetError(f"{label} returned a {type(made).__name__}, not a torch.optim.Optimizer")
        return made

    return make


def _step(request: TraceRequest) -> Any:
    if request.step_callable is None:
        return None
    function, _ = find_callable(request.step_callable)
    if not callable(function):
        raise TargetError(
            f"{request.step_callable.label} is not a function; a step takes (model, batch, optimizer)"
        )

    def step(model: Any, batch: Any, optimizer: Any) -> Any:
        model = model.made if isinstance(model, Several) else model
        return function(*as_many_as_it_takes(function, model, batch, optimizer))

    return step


def _loss(request: TraceRequest) -> Any:
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
