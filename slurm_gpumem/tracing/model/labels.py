"""Arguments of forward from which a model computes its own loss: labels that nobody gave, a loader's pair."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any, Callable, List, Optional, Tuple

import torch
from torch import Tensor, nn

from slurm_gpumem.tracing.model.inputs import Inputs

NAMES = ("labels", "label", "targets", "target")


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
