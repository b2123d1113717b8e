"""Composite operators that take another way on CUDA than on meta tensors: dropout, attention, softmax.

They are replaced for meta tensors only, and only while a trace is made.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, Optional, Sequence

import torch
from torch import Tensor

from slurm_gpumem.model.live.attention import attention
from slurm_gpumem.model.live.fast import like
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
        return aten._softmax(data.contiguous(), dim, True)  # type: ignore[no-any-return]
    return aten._softmax(data if dtype is None else data.to(dtype), dim, False)  # type: ignore[no-any-return]


def _log_softmax(data: Tensor, dim: int, dtype: Optional[torch.dtype] = None) -> Tensor:
    if dtype == torch.float32 and data.dtype in _HALF:
        return aten._log_softmax(data.contiguous(), dim, True)  # type: ignore[no-any-return]
    return aten._log_softmax(data if dtype is None else data.to(dtype), dim, False)  # type: ignore[no-any-return]


def _rms_norm(
    data: Tensor,
    shape: Sequence[int],
    weight: Optional[Tensor] = None,
    eps: Optional[float] = None,
) -> Tensor:
    """CUDA has one kernel for it where input and weight are of one type."""
    if weight is not None and weight.dtype != data.dtype:
        wide = data.float() if data.dtype in _HALF else data
        dims = list(range(-len(shape), 0))
        scaled = wide * torch.rsqrt(wide.pow(2).mean(dims, keepdim=True) + (eps or 0.0))
        return (scaled * weight).type_as(data)
    return _FusedRmsNorm.apply(data, shape, weight)  # type: ignore[no-any-return]


class _FusedRmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, data: Tensor, shape: Sequence[int], weight: Optional[Tensor]) -> Tensor:
        result = like(data)
        rows = data.shape[: data.dim() - len(shape)]
        scale = torch.empty((*rows, *(1 for _ in shape)), dtype=torch.float32, device=data.device)
        ctx.save_for_backward(data, scale, *([] if weight is None else [weight]))
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        data, _, *weights = ctx.saved_tensors
        into = like(data) if ctx.needs_input_grad[0] else None
        return into, None, like(weights[0]) if weights else None


_REPLACED = {
    "rms_norm": _rms_norm,
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
