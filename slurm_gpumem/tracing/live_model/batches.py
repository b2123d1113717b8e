"""A user's batch, and batches like it of another size, on meta tensors."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional

import torch
from torch import Tensor

from slurm_gpumem.errors import UsageError
from slurm_gpumem.tracing.cuda.sparse_products import sparse_on_meta
from slurm_gpumem.tracing.engine.values import give, small
from slurm_gpumem.tracing.live_model.loop import Inputs
from slurm_gpumem.tracing.live_model.meta_model import META

MADE = 0
"""Used instead of a size: the batch was made at the requested size."""


def batch_size_of(batch: Any) -> Optional[int]:
    """The first size of the first tensor in a batch."""
    first = _first(batch)
    return int(first.shape[0]) if first is not None and first.dim() else None


def maker(
    batch: Any, target: Any, size: int, floats: Optional[torch.dtype] = None
) -> Callable[[int], Inputs]:
    """A function that makes a batch of any size like the given one; `batch` may be such a function.

    `floats` is the type that fp32 numbers get, for a model whose weights have it.
    """
    if callable(batch) and not isinstance(batch, Tensor):
        return lambda wanted: as_inputs(_resized(batch(wanted), MADE, wanted, floats), None)
    return lambda wanted: as_inputs(
        _resized(batch, size, wanted, floats), _resized(target, size, wanted, floats)
    )


def as_inputs(batch: Any, target: Any) -> Inputs:
    """A batch as a model's forward takes it: a dictionary by name, a tuple by position."""
    if isinstance(batch, Inputs):
        return batch
    if isinstance(batch, Mapping):
        return Inputs((), dict(batch), target)
    if isinstance(batch, (tuple, list)):
        return Inputs(tuple(batch), {}, target)
    return Inputs((batch,), {}, target, bare=True)


def _resized(value: Any, size: int, wanted: int, floats: Optional[torch.dtype]) -> Any:
    """The same value on meta tensors, with every first dimension of `size` changed to `wanted`."""
    if isinstance(value, Tensor):
        dtype = floats if floats is not None and value.dtype == torch.float32 else value.dtype
        if value.device == META and size == MADE and dtype == value.dtype:
            return value  # made for this step, already on meta tensors
        if value.layout != torch.strided:
            return sparse_on_meta(value)  # a graph stays as it is
        shape = list(value.shape)
        if shape and size > 0 and shape[0] % size == 0:
            shape[0] = shape[0] // size * wanted
        twin = torch.empty(shape, dtype=dtype, device=META)
        if value.device != META and value.numel() and small(twin):
            # For another size the same rows are repeated.
            rows = value if value.shape == twin.shape else _repeated(value, shape[0])
            give(twin, rows.detach().cpu().to(dtype, copy=True))
        return twin
    if isinstance(value, Inputs):
        return Inputs(
            _resized(value.args, size, wanted, floats),
            _resized(value.kwargs, size, wanted, floats),
            _resized(value.target, size, wanted, floats),
            value.bare,
        )
    if isinstance(value, Mapping):
        return {key: _resized(item, size, wanted, floats) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_resized(item, size, wanted, floats) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def _repeated(value: Tensor, rows: int) -> Tensor:
    return value[torch.arange(rows, device=value.device) % value.shape[0]]


def _first(value: Any) -> Optional[Tensor]:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Inputs):
        return _first([value.args, value.kwargs])
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            found = _first(item)
            if found is not None:
                return found
    return None


def require_size(batch: Any, given: Optional[int]) -> int:
    """The batch size, given or detected."""
    size = given if given is not None else (None if callable(batch) else batch_size_of(batch))
    if size is None:
        raise UsageError("the batch size cannot be detected; give batch_size=…")
    if size < 1:
        raise UsageError(f"the batch size must be at least 1, not {size}")
    return size
