"""What a request names in the user's code: a model, batches, a loss, an optimizer, a step.

Without batches one is made: from --input, or from what the model's library says about it.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import nn

from slurm_gpumem.errors import TargetError
from slurm_gpumem.tracing.model.build import Builder, Several, checkpoint_blocks, without_downloads
from slurm_gpumem.tracing.model.hub import timm_input
from slurm_gpumem.tracing.model.inputs import Inputs, on_gpu
from slurm_gpumem.tracing.model.load import as_many_as_it_takes, call, find_callable
from slurm_gpumem.tracing.model.losses import main_tensor
from slurm_gpumem.tracing.model.spec import BATCH, HUGGING_FACE, NO_OPTIMIZER, TIMM, InputSpec, TraceRequest
from slurm_gpumem.tracing.script.tracer import Tracer

_SEQUENCE = 512
_LONGEST = 512
_SPEECH_LABELS = 24


@dataclass
class Batch:
    """The arguments of forward."""

    args: List[torch.Tensor] = field(default_factory=list)
    kwargs: Dict[str, Any] = field(default_factory=dict)
    said: str = ""
    """What was chosen for the user, in words."""


def make_batch(request: TraceRequest, model: torch.nn.Module) -> Batch:
    """The batch that --input describes, completed by what the model's library expects."""
    if request.target.kind == HUGGING_FACE:
        return _hugging_face(request, model)
    inputs = request.inputs
    said = ""
    if not inputs and request.target.kind == TIMM and timm_input(model):
        inputs = (InputSpec((BATCH, *timm_input(model))),)
        said = f"input {_example(timm_input(model))}, as timm says; --input sets another"
    if not inputs:
        raise TargetError(f"{request.target.label}: no input. {_suggestion(model)}")
    batch = Batch(said=said)
    for one in inputs:
        _add(batch, one, request.batch_size, _default_dtype(model, request.precision))
    return batch


def tensor(one: InputSpec, batch_size: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of an input's shape; zeros are valid as indices, classes and pixels."""
    kind = getattr(torch, one.dtype) if one.dtype else dtype
    return torch.zeros(one.shape(batch_size), dtype=kind, device="cuda")


def _add(batch: Batch, one: InputSpec, batch_size: int, dtype: torch.dtype) -> None:
    made = tensor(one, batch_size, dtype)
    if one.name:
        batch.kwargs[one.name] = made
    else:
        batch.args.append(made)


def _default_dtype(model: torch.nn.Module, precision: str) -> torch.dtype:
    """int64 for a model that starts with an embedding, otherwise the weights' type."""
    first = next((m for m in model.modules() if not list(m.children()) and list(m.parameters(False))), None)
    if isinstance(first, torch.nn.Embedding):
        return torch.int64
    return torch.bfloat16 if precision == "bf16" else torch.float32


def _suggestion(model: torch.nn.Module) -> str:
    """What to write, from the model's first layer and its forward."""
    first = next((m for m in model.modules() if not list(m.children()) and list(m.parameters(False))), None)
    example = "3,224,224"
    if isinstance(first, torch.nn.Embedding):
        example = "128 --input-dtype int64"
    elif isinstance(first, torch.nn.Linear):
        example = str(first.in_features)
    elif isinstance(first, torch.nn.Conv1d):
        example = f"{first.in_channels},1000"
    elif isinstance(first, torch.nn.Conv2d):
        example = f"{first.in_channels},224,224"
    elif isinstance(first, torch.nn.Conv3d):
        example = f"{first.in_channels},64,64,64"
    elif isinstance(first, torch.nn.RNNBase):
        example = f"100,{first.input_size}"
    takes = list(inspect.signature(model.forward).parameters)
    several = f" Its forward takes: {', '.join(takes)}." if len(takes) > 1 else ""
    return f"Give the shape of one sample, without the batch: --input {example}{several}"


# -- transformers ----------------------------------------------------------------------------------


def _hugging_face(request: TraceRequest, model: Any) -> Batch:
    config, main = model.config, str(model.main_input_name)
    takes = inspect.signature(model.forward).parameters
    batch = Batch()
    for one in request.inputs:
        named = one if one.name else InputSpec(one.sizes, main, one.dtype)
        whole = torch.int64 if named.name.endswith(("ids", "mask", "labels", "positions")) else torch.float32
        batch.kwargs[named.name] = tensor(named, request.batch_size, whole)
    size = request.batch_size
    if not batch.kwargs:
        sizes = _usual_sizes(model, config, main)
        one = InputSpec((BATCH, *sizes), main)
        whole = torch.int64 if main == "input_ids" else torch.float32
        batch.kwargs[main] = tensor(one, size, whole)
        batch.said = f"input {main}={_example(sizes)} was chosen; --input sets another"
    for name, shape in _labels(type(model).__name__, config, batch.kwargs, main).items():
        if name in takes and name not in batch.kwargs:
            batch.kwargs[name] = torch.zeros(shape, dtype=torch.int64, device="cuda")
    if "return_loss" in takes and "labels" not in batch.kwargs:
        batch.kwargs["return_loss"] = True
    return batch


def _usual_sizes(model: Any, config: Any, main: str) -> Tuple[int, ...]:
    """One sample's shape for a model of transformers, from its configuration."""
    text = getattr(config, "get_text_config", lambda: config)()
    if main == "input_ids":
        longest = _number(text, "max_position_embeddings", "n_positions", "max_length")
        return (min(longest or _SEQUENCE, _LONGEST),)
    if main in ("pixel_values", "pixel_values_videos"):
        vision = getattr(config, "vision_config", None) or config
        side = getattr(vision, "image_size", None) or 224
        height, width = (side, side) if isinstance(side, int) else tuple(side)[-2:]
        channels = getattr(vision, "num_channels", 3) or 3
        frames = getattr(config, "num_frames", None)
        return (frames, channels, height, width) if frames and "Video" in type(model).__name__ else (
            channels, height, width,
        )  # fmt: skip
    if main == "input_features":
        bins = _number(config, "num_mel_bins", "input_feat_per_channel") or 80
        positions = _number(config, "max_source_positions")
        return (bins, 2 * positions) if hasattr(config, "num_mel_bins") and positions else (1000, bins)
    if main == "input_values":
        mel = _number(config, "num_mel_bins")
        return (_number(config, "max_length") or 1024, mel) if mel else (80000,)
    raise TargetError(
        f"{type(model).__name__} takes {main}: give its shape for one sample, as --input {main}=SIZES"
    )


def _labels(name: str, config: Any, given: Dict[str, Any], main: str) -> Dict[str, Tuple[int, ...]]:
    """Shapes of the inputs from which such a model computes its own loss, by its class's name."""
    first = given[main] if main in given else next(iter(given.values()))
    count = int(first.shape[0])
    if name.endswith(("ForQuestionAnswering",)):
        return {"start_positions": (count,), "end_positions": (count,)}
    if name.endswith(("ForMultipleChoice", "ForNextSentencePrediction")):
        return {"labels": (count,)}
    if "Classification" in name and "Token" not in name and "Frame" not in name:
        return {"labels": (count,)}
    if "Segmentation" in name and "pixel_values" in given:
        return {"labels": (count, *first.shape[-2:])}
    if name.endswith("ForCTC"):
        return {"labels": (count, _SPEECH_LABELS)}
    if "input_ids" in given:
        return {"labels": tuple(given["input_ids"].shape)}
    if name.endswith(("ForConditionalGeneration", "ForSpeechSeq2Seq")):
        longest = _number(config, "max_target_positions") or _SEQUENCE
        return {"labels": (count, min(longest, _LONGEST))}
    return {}


def _number(config: Any, *names: str) -> Optional[int]:
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def _example(sizes: Tuple[int, ...]) -> str:
    return ",".join(str(size) for size in sizes)


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
        first = make_batch(request, model)
        if first.said:
            tracer.note(first.said)

        def make(size: int) -> Inputs:
            made = make_batch(replace(request, batch_size=size), model)
            target = None
            if request.target_input is not None:
                target = tensor(request.target_input, size, torch.int64)
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
