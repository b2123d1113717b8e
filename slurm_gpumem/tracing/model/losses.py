"""The loss that a model is most likely trained with, if the user names none, and labels that it needs."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slurm_gpumem.errors import UnknownNameError
from slurm_gpumem.tracing.model.inputs import Inputs

Given = Union[str, Callable[[Any, Any], Tensor], None]


class Loss:
    """A function of the model's output and the target that remembers what it computed."""

    def __init__(self, given: Given) -> None:
        if isinstance(given, str) and given not in _NAMED:
            raise UnknownNameError("loss", given, list(_NAMED))
        self._given = given
        self.what = ""
        """In words: "cross-entropy over [32, 1000]"; "" before the first call."""

    def __call__(self, out: Any, target: Any) -> Tensor:
        name, value, over = self._computed(out, target)
        if not self.what:
            self.what = f"{name} over {list(over.shape)}" if over is not None else name
        return value

    def _computed(self, out: Any, target: Any) -> Tuple[str, Tensor, Optional[Tensor]]:
        given = self._given
        if given is None:
            own, name = own_loss(out)
            if own is not None:
                return name, own, None
            given = "mse" if isinstance(target, Tensor) and target.is_floating_point() else "cross-entropy"
        if isinstance(given, str):
            return given, _NAMED[given](out, target), main_tensor(out)
        name = getattr(given, "__name__", type(given).__name__)
        return name, given(out, target), _tensor_in(out)


def own_loss(out: Any) -> Tuple[Optional[Tensor], str]:
    """The loss among a model's outputs: called so, or single numbers that can be trained."""
    named = out.get("loss") if isinstance(out, dict) else getattr(out, "loss", None)
    if isinstance(named, Tensor):
        return named, "the model's own loss"
    if isinstance(out, Tensor):
        return (out, "the model's output, a single number") if out.dim() == 0 else (None, "")
    if isinstance(out, dict):
        losses = {k: v for k, v in out.items() if _is_single(v) and "loss" in str(k).lower()}
        if losses:
            total: Any = sum(losses.values())
            return total, f"the sum of {', '.join(map(str, losses))} of the model's output"
    values = out.values() if isinstance(out, dict) else out if isinstance(out, (tuple, list)) else ()
    single = [value for value in values if _is_single(value)]
    if len(single) > 1:
        several: Any = sum(single)
        return several, f"the sum of the {len(single)} single numbers in the model's output"
    return (single[0], "the single number in the model's output") if single else (None, "")


def _is_single(value: Any) -> bool:
    return (
        isinstance(value, Tensor) and value.dim() == 0 and value.is_floating_point() and value.requires_grad
    )


def _tensor_in(out: Any) -> Optional[Tensor]:
    try:
        return main_tensor(out)
    except (IndexError, TypeError, AttributeError):
        return None  # an output without tensors: a distribution, somebody's own class


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


_NAMED: Dict[str, Callable[[Any, Any], Tensor]] = {
    "cross-entropy": _cross_entropy,
    "mse": _squares,
    "none": _mean,
}


NAMES = ("labels", "label", "targets", "target")
"""Arguments of forward from which a model computes its own loss."""


def unfilled(model: nn.Module, inputs: Inputs) -> Optional[str]:
    """The argument for labels that forward has and the batch does not fill, if any."""
    parameters = _parameters(model)
    by_position = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    filled = {*by_position[: len(inputs.args)], *inputs.kwargs}
    for parameter in parameters:
        if parameter.name in NAMES and parameter.default is None and parameter.name not in filled:
            return parameter.name
    return None


def filled(make: Callable[[int], Inputs], name: str) -> Optional[Callable[[int], Inputs]]:
    """Batches with labels like the tokens that they have, one for each; None where they have no tokens."""
    tokens = _tokens(make(1))
    if tokens is None:
        return None

    def made(size: int) -> Inputs:
        inputs = make(size)
        like = _tokens(inputs)
        assert like is not None
        labels = torch.zeros(like.shape, dtype=torch.int64, device=like.device)
        return replace(inputs, kwargs={**inputs.kwargs, name: labels})

    return made


def warnings(filled: str, left_out: str, loss: str) -> Tuple[str, ...]:
    """What a user should know of labels that were not given, by the argument's name; `loss` was used."""
    if filled:
        return (f"forward's {filled} was not given: one label per token, for the model's own loss",)
    if left_out:
        return (
            f"forward takes {left_out}, which was not given; the loss is {loss}. Give {left_out} for the "
            "model's own",
        )
    return ()


def is_pair(model: nn.Module, batch: Any) -> bool:
    """Whether a batch is a data loader's (input, target) for a forward that takes the input alone."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        return False
    parameters = _parameters(model)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return False
    takes = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(takes) == 1


def _parameters(model: nn.Module) -> List[inspect.Parameter]:
    try:
        return list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        return []  # scripted: its forward has no signature


def _tokens(inputs: Inputs) -> Optional[Tensor]:
    for value in (*inputs.args, *inputs.kwargs.values()):
        if isinstance(value, Tensor):
            whole = not value.is_floating_point() and value.dtype != torch.bool
            return value if whole and value.dim() >= 2 else None
    return None
