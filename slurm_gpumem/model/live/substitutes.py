"""Composite operators that take another way on CUDA than on meta tensors: dropout, attention, softmax.

They are replaced for meta tensors only, and only while a trace is made.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, Optional

import torch
from torch import Tensor

from slurm_gpumem.model.live.attention import attention
from slurm_gpumem.model.live.recurrent import recurrent_kernels

_HALF = (torch.float16, torch.bfloat16)
aten = torch.ops.aten


def _dropout(data: Tensor, p: float, train: bool) -> Tensor:
    """One byte an element for the mask, as CUDA's fused kernel keeps it."""
    if not train or p == 0 or data.numel() == 0:
        return data
    if p == 1:
        return data * torch.zeros((), dtype=data.dtype, device=data.device)
    result: Tensor = aten.native_dropout(data, p, train)[0]
    return result


def _softmax(data: Tensor, dim: int, dtype: Optional[torch.dtype] = None) -> Tensor:
    """CUDA widens half precision inside the kernel."""
    if dtype == torch.float32 and data.dtype in _HALF:
        return aten._softmax(data, dim, True)  # type: ignore[no-any-return]
    return aten._softmax(data if dtype is None else data.to(dtype), dim, False)  # type: ignore[no-any-return]


def _log_softmax(data: Tensor, dim: int, dtype: Optional[torch.dtype] = None) -> Tensor:
    if dtype == torch.float32 and data.dtype in _HALF:
        return aten._log_softmax(data, dim, True)  # type: ignore[no-any-return]
    return aten._log_softmax(data if dtype is None else data.to(dtype), dim, False)  # type: ignore[no-any-return]


_REPLACED = {
    "dropout": _dropout,
    "softmax.int": _softmax,
    "log_softmax.int": _log_softmax,
    "scaled_dot_product_attention": attention,
}


@contextmanager
def cuda_substitutes(recorder: Any) -> Iterator[None]:
    """Inside, meta tensors take CUDA's way through these operators."""
    library = torch.library.Library("aten", "IMPL")
    try:
        for name, function in {**_REPLACED, **recurrent_kernels(recorder)}.items():
            library.impl(name, _kept(function), "AutogradMeta")
        yield
    finally:
        library._destroy()


def _kept(function: Any) -> Any:
    """A function of its own each time: a registration is told apart by its object."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call
