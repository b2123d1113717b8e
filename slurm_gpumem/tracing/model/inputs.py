"""A user's batch on the traced GPU, and batches like it of another size."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import torch
from torch import Tensor

from slurm_gpumem.errors import UsageError
from slurm_gpumem.tracing.engine.recorder import Recorder
from slurm_gpumem.tracing.engine.values import give, value_of


@dataclass
class Inputs:
    """One step's data, as the model's forward takes it, and what its output is compared with."""

    args: Tuple[Any, ...] = ()
    kwargs: Dict[str, Any] = field(default_factory=dict)
    target: Any = None
    bare: bool = False
    """Whether the only argument was given alone, not in a tuple."""

    def tensors(self) -> List[Tensor]:
        """Every tensor in it."""
        found: List[Tensor] = []
        waiting: List[Any] = [self.args, self.kwargs, self.target]
        while waiting:
            item = waiting.pop(0)
            if isinstance(item, Tensor):
                found.append(item)
            elif isinstance(item, (list, tuple)):
                waiting[:0] = item
            elif isinstance(item, Mapping):
                waiting[:0] = item.values()
        return found


def as_inputs(batch: Any, target: Any = None) -> Inputs:
    """A batch as a model's forward takes it: a dictionary by name, a tuple by position."""
    if isinstance(batch, Inputs):
        return batch
    if isinstance(batch, Mapping):
        return Inputs((), dict(batch), target)
    if isinstance(batch, (tuple, list)):
        return Inputs(tuple(batch), {}, target)
    return Inputs((batch,), {}, target, bare=True)


def on_gpu(
    value: Any, recorder: Recorder, floats: Optional[torch.dtype], sizes: Tuple[int, int] = (1, 1)
) -> Any:
    """The same on the GPU; first dimensions of sizes[0] become sizes[1], and fp32 numbers become `floats`."""
    return mapped(value, lambda tensor: _moved(tensor, recorder, floats, sizes))


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A nested value in which each tensor is changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Inputs):
        args, kwargs, target = (mapped(part, change) for part in (value.args, value.kwargs, value.target))
        return Inputs(args, kwargs, target, value.bare)
    if isinstance(value, Mapping):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [mapped(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _moved(
    value: Tensor, recorder: Recorder, floats: Optional[torch.dtype], sizes: Tuple[int, int]
) -> Tensor:
    if value.layout != torch.strided:
        return value.cuda()  # a graph stays as it is
    dtype = floats if floats is not None and value.dtype == torch.float32 else value.dtype
    shape, (size, wanted) = list(value.shape), sizes
    if shape and shape[0] % size == 0:
        shape[0] = shape[0] // size * wanted
    same = shape == list(value.shape)
    if not value.is_cuda:
        return (value if same else value[_rows(value, shape[0])]).to("cuda", dtype)
    if same and recorder.block_of(value) is not None:
        return value.to(dtype)
    # It was made before the trace, or for the device without memory.
    twin, known = torch.empty(shape, dtype=dtype, device="cuda"), value_of(value)
    if known is not None and known.numel():
        give(twin, known[_rows(known, shape[0])].to(dtype) if shape else known.to(dtype))
    return twin


def _rows(value: Tensor, rows: int) -> Tensor:
    """Those of a batch of another size: the same ones again and again."""
    return torch.arange(rows) % max(1, value.shape[0])


def require_size(batch: Any, given: Optional[int]) -> int:
    """The batch size, given or detected."""
    size = given if given is not None else (None if callable(batch) else batch_size_of(batch))
    if size is None:
        raise UsageError("the batch size cannot be detected; give batch_size=…")
    if size < 1:
        raise UsageError(f"the batch size must be at least 1, not {size}")
    return size


def batch_size_of(batch: Any) -> Optional[int]:
    """The first size of the first tensor in a batch."""
    found = (batch if isinstance(batch, Inputs) else Inputs((batch,))).tensors()
    return int(found[0].shape[0]) if found and found[0].dim() else None
