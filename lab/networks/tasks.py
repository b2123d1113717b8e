"""What a model is fed and how its loss is taken: one function a kind of training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Mapping, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from slurm_gpumem.errors import ConfigError


@dataclass(frozen=True)
class Feed:
    """Where and how large a batch is made."""

    batch: int
    size: int
    device: torch.device
    dtype: torch.dtype
    """Of floating-point inputs."""
    args: Mapping[str, Any]
    config: Any = None
    """A transformers model's configuration, which knows its vocabulary and image size."""

    def floats(self, *shape: int) -> Tensor:
        return torch.randn(self.batch, *shape, device=self.device, dtype=self.dtype)

    def ints(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, (self.batch, *shape), device=self.device)

    def ones(self, *shape: int) -> Tensor:
        return torch.ones((self.batch, *shape), device=self.device, dtype=torch.int64)

    def get(self, name: str, default: int) -> int:
        value = self.args.get(name, getattr(self.config, name, default))
        return int(value)


@dataclass
class Batch:
    """One step's data, as the model's forward takes it, and what its output is compared with."""

    args: Tuple[Any, ...] = ()
    kwargs: Dict[str, Any] = field(default_factory=dict)
    target: Any = None


Make = Callable[[Feed], Batch]
Loss = Callable[[Any, Any], Tensor]


def _image(f: Feed) -> Batch:
    x = f.floats(f.get("channels", 3), f.size, f.size)
    return Batch((x,), target=f.ints(f.get("classes", 1000)))


def _video(f: Feed) -> Batch:
    x = f.floats(3, f.get("frames", 16), f.size, f.size)
    return Batch((x,), target=f.ints(400))


def _segment(f: Feed) -> Batch:
    x = f.floats(f.get("channels", 3), f.size, f.size)
    return Batch((x,), target=f.ints(f.get("classes", 21), f.size, f.size))


def _detect(f: Feed) -> Batch:
    images = [torch.rand(3, f.size, f.size, device=f.device, dtype=f.dtype) for _ in range(f.batch)]
    side = float(f.size)
    boxes = torch.tensor([[0.1, 0.1, 0.5, 0.5], [0.3, 0.2, 0.9, 0.8], [0.6, 0.5, 0.8, 0.9]]) * side
    targets = [
        {"boxes": boxes.to(f.device), "labels": torch.ones(3, dtype=torch.int64, device=f.device)}
        for _ in range(f.batch)
    ]
    return Batch((images, targets))


def _text(f: Feed) -> Batch:
    ids = f.ints(f.get("vocab_size", 1000), f.size)
    labels = f.ints(2)
    return Batch(kwargs={"input_ids": ids, "attention_mask": f.ones(f.size), "labels": labels})


def _tag(f: Feed) -> Batch:
    ids = f.ints(f.get("vocab_size", 1000), f.size)
    labels = f.ints(2, f.size)
    return Batch(kwargs={"input_ids": ids, "attention_mask": f.ones(f.size), "labels": labels})


def _lm(f: Feed) -> Batch:
    ids = f.ints(f.get("vocab_size", 1000), f.size)
    return Batch(kwargs={"input_ids": ids, "attention_mask": f.ones(f.size), "labels": ids.clone()})


def _seq2seq(f: Feed) -> Batch:
    vocabulary = f.get("vocab_size", 1000)
    ids = f.ints(vocabulary, f.size)
    labels = f.ints(vocabulary, max(f.size // 4, 8))
    return Batch(kwargs={"input_ids": ids, "attention_mask": f.ones(f.size), "labels": labels})


def _hf_image(f: Feed) -> Batch:
    return Batch(kwargs={"pixel_values": f.floats(3, f.size, f.size), "labels": f.ints(2)})


def _hf_segment(f: Feed) -> Batch:
    labels = f.ints(2, f.size, f.size)
    return Batch(kwargs={"pixel_values": f.floats(3, f.size, f.size), "labels": labels})


def _hf_video(f: Feed) -> Batch:
    x = f.floats(f.get("num_frames", 16), 3, f.size, f.size)
    return Batch(kwargs={"pixel_values": x, "labels": f.ints(2)})


def _audio(f: Feed) -> Batch:
    return Batch(kwargs={"input_values": f.floats(f.size), "labels": f.ints(31, 24) + 1})


def _audio_class(f: Feed) -> Batch:
    return Batch(kwargs={"input_values": f.floats(f.size), "labels": f.ints(2)})


def _spectrogram(f: Feed) -> Batch:
    x = f.floats(f.size, f.get("num_mel_bins", 128))
    return Batch(kwargs={"input_values": x, "labels": f.ints(2)})


def _whisper(f: Feed) -> Batch:
    x = f.floats(f.get("num_mel_bins", 80), 3000)
    return Batch(kwargs={"input_features": x, "labels": f.ints(f.get("vocab_size", 1000), f.size)})


def _image_text(f: Feed) -> Batch:
    length = f.get("tokens", 64)
    kwargs: Dict[str, Any] = {
        "input_ids": f.ints(f.get("vocabulary", 30000), length),
        "pixel_values": f.floats(3, f.size, f.size),
        "return_loss": True,
    }
    return Batch(kwargs=kwargs)


def _forecast(f: Feed) -> Batch:
    channels = f.get("num_input_channels", 7)
    past = f.floats(f.size, channels)
    return Batch(
        kwargs={"past_values": past, "future_values": f.floats(f.get("prediction_length", 96), channels)}
    )


def _described_inputs(f: Feed) -> Batch:
    args = tuple(_described(f, text) for text in f.args["inputs"])
    return Batch(args, target=_described(f, f.args["target"]) if "target" in f.args else None)


def _packed(f: Feed) -> Batch:
    """As `_described_inputs`, for a network that takes all its inputs as one list."""
    batch = _described_inputs(f)
    return Batch((list(batch.args),), target=batch.target)


def _described(f: Feed, text: str) -> Tensor:
    """A batch's tensor from a text such as "float 3 S S" or "int:1000 S/4", S being the size.

    "unit" is a float in 0..1, "bool" true or false, "int:8..16" not less than 8 and less than 16.
    """
    kind, *sides = text.split()
    shape = [_side(f, side) for side in sides]
    if kind == "float":
        return f.floats(*shape)
    if kind == "unit":
        return torch.rand(f.batch, *shape, device=f.device, dtype=f.dtype)
    if kind == "bool":
        return f.ints(2, *shape) > 0
    low, _, high = kind.split(":")[1].rpartition("..")
    least = _side(f, low or "0")
    return f.ints(_side(f, high) - least, *shape) + least if low else f.ints(_side(f, high), *shape)


def _side(f: Feed, text: str) -> int:
    factor, _, divisor = text.partition("S")
    if text == factor:
        return int(text)
    return int(factor or 1) * f.size // int(divisor.lstrip("/") or 1)


def _cross_entropy(out: Any, target: Any) -> Tensor:
    if isinstance(out, tuple):
        # GoogLeNet and Inception return auxiliary classifiers while they train.
        first, *others = [o for o in out if isinstance(o, Tensor)]
        loss = F.cross_entropy(first, target)
        for other in others:
            loss = loss + 0.3 * F.cross_entropy(other, target)
        return loss
    return F.cross_entropy(out, target)


def _segment_loss(out: Any, target: Any) -> Tensor:
    if isinstance(out, dict):
        loss = F.cross_entropy(out["out"], target)
        return loss + 0.5 * F.cross_entropy(out["aux"], target) if "aux" in out else loss
    return F.cross_entropy(out, target)


def _model_loss(out: Any, target: Any) -> Tensor:
    loss: Tensor = out["loss"] if isinstance(out, dict) and "loss" in out else out.loss
    return loss


def _last_dimension(out: Any, target: Any) -> Tensor:
    """Cross entropy of classes in the last dimension."""
    return F.cross_entropy(out.flatten(0, -2), target.flatten())


def _first(out: Any) -> Tensor:
    """The first tensor of what a network gives back, however it is wrapped."""
    while not isinstance(out, Tensor):
        out = next(iter(out.values())) if isinstance(out, dict) else out[0]
    return out


def _first_classes(out: Any, target: Any) -> Tensor:
    return F.cross_entropy(_first(out), target)


def _first_tokens(out: Any, target: Any) -> Tensor:
    return _last_dimension(_first(out), target)


def _first_close(out: Any, target: Any) -> Tensor:
    return F.mse_loss(_first(out), target)


def _squares(out: Any, target: Any) -> Tensor:
    """Of a network with several outputs, each with a target of its own: something of all of them."""
    if isinstance(out, Tensor):
        return out.float().square().mean()
    parts = [_squares(one, target) for one in (out.values() if isinstance(out, dict) else out)]
    total: Tensor = sum(parts[1:], parts[0])
    return total


def _main_loss(out: Any, target: Any) -> Tensor:
    """Of a network that gives back a prediction, its loss and an auxiliary one."""
    loss: Tensor = out[1] + 0.4 * out[2]
    return loss


def _second_loss(out: Any, target: Any) -> Tensor:
    """Of a network that gives back a prediction and its loss, for each sample or for all of them."""
    loss: Tensor = out[1].mean()
    return loss


def _sum_loss(out: Any, target: Any) -> Tensor:
    total: Tensor = sum(out.values())
    return total


TASKS: Dict[str, Tuple[Make, Loss]] = {
    "image": (_image, _cross_entropy),
    "video": (_video, _cross_entropy),
    "segment": (_segment, _segment_loss),
    "detect": (_detect, _sum_loss),
    "text": (_text, _model_loss),
    "tag": (_tag, _model_loss),
    "lm": (_lm, _model_loss),
    "seq2seq": (_seq2seq, _model_loss),
    "hf-image": (_hf_image, _model_loss),
    "hf-segment": (_hf_segment, _model_loss),
    "hf-video": (_hf_video, _model_loss),
    "audio": (_audio, _model_loss),
    "audio-class": (_audio_class, _model_loss),
    "spectrogram": (_spectrogram, _model_loss),
    "whisper": (_whisper, _model_loss),
    "image-text": (_image_text, _model_loss),
    "forecast": (_forecast, _model_loss),
    "first-classes": (_described_inputs, _first_classes),
    "first-tokens": (_described_inputs, _first_tokens),
    "first-close": (_described_inputs, _first_close),
    "squares": (_described_inputs, _squares),
    "packed": (_packed, _squares),
    "second-loss": (_described_inputs, _second_loss),
    "main-loss": (_described_inputs, _main_loss),
}


def task_named(name: str) -> Tuple[Make, Loss]:
    """The batch maker and the loss of a task; ConfigError when there is none of that name."""
    try:
        return TASKS[name]
    except KeyError:
        raise ConfigError(f"unknown task {name!r}; known: {', '.join(TASKS)}") from None
