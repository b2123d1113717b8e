"""The loss that a model is most likely trained with, if the user names none."""

from __future__ import annotations

from typing import Any, Callable, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from slurm_gpumem.errors import UnknownNameError

Given = Union[str, Callable[[Any, Any], Tensor], None]


def make_loss(given: Given) -> Callable[[Any, Any], Tensor]:
    """A function of the model's output and the target."""
    if given is None:
        return _own
    if callable(given):
        return given
    if given not in _NAMED:
        raise UnknownNameError("loss", given, list(_NAMED))
    return _NAMED[given]


def name_of(given: Given) -> str:
    """A loss's name for the record."""
    if given is None:
        return "auto"
    return given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)


def main_tensor(out: Any) -> Tensor:
    """The output that the loss is computed from: logits, or the first tensor."""
    if isinstance(out, Tensor):
        return out
    for name in ("logits", "out", "last_hidden_state", "prediction"):
        value = out.get(name) if isinstance(out, dict) else getattr(out, name, None)
        if isinstance(value, Tensor):
            return value
    items = list(out.values()) if isinstance(out, dict) else list(out)
    for item in items:
        if isinstance(item, Tensor) and item.is_floating_point():
            return item
    return main_tensor(items[0])


def _own(out: Any, target: Any) -> Tensor:
    """The model's own loss, else mean squared error for a floating-point target, else cross-entropy."""
    own = out.get("loss") if isinstance(out, dict) else getattr(out, "loss", None)
    if isinstance(own, Tensor):
        return own
    if isinstance(target, Tensor) and target.is_floating_point():
        return F.mse_loss(main_tensor(out), target)
    return _cross_entropy(out, target)


def _cross_entropy(out: Any, target: Any) -> Tensor:
    logits = main_tensor(out)
    if not isinstance(target, Tensor):
        # A sequence's classes are in its last dimension, an image's in its second.
        if logits.dim() == 3:
            logits = logits.flatten(0, 1)
        shape = (logits.shape[0], *logits.shape[2:]) if logits.dim() > 1 else logits.shape
        if logits.dim() <= 1:
            return logits.mean()
        target = torch.zeros(shape, dtype=torch.int64, device=logits.device)
    elif logits.dim() == 3 and target.shape == logits.shape[:2]:
        logits, target = logits.flatten(0, 1), target.flatten()
    return F.cross_entropy(logits, target)


def _squares(out: Any, target: Any) -> Tensor:
    prediction = main_tensor(out)
    if not isinstance(target, Tensor):
        target = torch.zeros_like(prediction)
    return F.mse_loss(prediction, target)


def _mean(out: Any, target: Any) -> Tensor:
    return main_tensor(out).mean()


_NAMED = {"cross-entropy": _cross_entropy, "mse": _squares, "none": _mean}
