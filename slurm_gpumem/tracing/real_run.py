"""The fallback: a model that does not run on meta tensors is run for real, on the CPU, with a few rows."""

from __future__ import annotations

from typing import Any, Callable, List

import torch
from torch import Tensor, nn

from slurm_gpumem.errors import UsageError
from slurm_gpumem.tracing.copies import copied
from slurm_gpumem.tracing.loop import Inputs
from slurm_gpumem.tracing.meta_model import scripted_twin
from slurm_gpumem.tracing.values import value_of

BATCHES = (2, 2, 4)
"""Rows of each step: two steps of one size and one of another, to see what grows with the batch."""
_MOST_BYTES = 8 << 30


def refuses_meta(error: BaseException) -> bool:
    """Whether an error means that a meta tensor has no values, or that an operator does not support it."""
    text = str(error).lower()
    return any(sign in text for sign in ("meta", "no data", "fake impl"))


def has_values(model: nn.Module) -> bool:
    """Whether a model was built with numbers, so that it can be run."""
    return all(tensor.device.type != "meta" for tensor in (*model.parameters(), *model.buffers()))


def real_twin(model: nn.Module) -> nn.Module:
    """A copy on the CPU with real values; UsageError if there is not enough memory."""
    tensors = [*model.parameters(), *model.buffers()]
    if sum(tensor.numel() * tensor.element_size() for tensor in tensors) > _MOST_BYTES:
        raise UsageError("the model does not run on meta tensors and is too large to run on the CPU")
    if isinstance(model, torch.jit.ScriptModule):
        return scripted_twin(model, torch.device("cpu"))
    return copied(model, {}, torch.clone).cpu()


def real_maker(make: Callable[[int], Inputs]) -> Callable[[int], Inputs]:
    """Batches with values: their own if they have some, otherwise random ones, or zeros for integers."""
    return lambda rows: _filled(make(rows))


def _filled(value: Any) -> Any:
    if isinstance(value, Inputs):
        return Inputs(_filled(value.args), _filled(value.kwargs), _filled(value.target), value.bare)
    if isinstance(value, Tensor):
        known = value if value.device.type != "meta" else value_of(value)
        if known is not None:
            return known.detach().cpu().clone()
        if value.is_floating_point():
            return torch.randn(value.shape, dtype=value.dtype)
        return torch.zeros(value.shape, dtype=value.dtype)
    if isinstance(value, dict):
        return {key: _filled(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items: List[Any] = [_filled(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value
