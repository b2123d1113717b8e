"""Make the batch a model is traced with: from --input, or from what its library says about the model."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

import torch

from slurm_gpumem.errors import TargetError
from slurm_gpumem.tracing.model.hub import timm_input
from slurm_gpumem.tracing.model.spec import BATCH, HUGGING_FACE, TIMM, InputSpec, TraceRequest

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
