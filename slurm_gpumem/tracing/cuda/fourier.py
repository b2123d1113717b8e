"""Fourier transforms on CUDA: what cuFFT and the code around it hold beside the result.

cuFFT takes one batch dimension, so a transform along another dimension than the last copies its input; the
transform back to real numbers overwrites its input, and gets a copy. The workspace of a plan comes from
PyTorch's allocator. As read in ATen's SpectralOps.cu, and watched on an H200 with torch 2.11 for lengths from
8 to 1,048,576: no workspace, but for lengths with a prime factor above 127 (of real numbers) and for
transforms that are too long for one kernel.
"""

from __future__ import annotations

from math import prod
from typing import Any, Callable, Dict, List

import torch
from torch import Tensor

from slurm_gpumem.tracing.cuda.layouts import size_of
from slurm_gpumem.tracing.engine.recording import Recording

aten = torch.ops.aten
_LARGEST_PRIME = 127
"""Of a length that cuFFT divides into its factors; others are made longer."""
_ONE_KERNEL = 1 << 15
"""Complex numbers of the longest transform that one kernel does."""


def _transform(kind: str) -> Callable[..., Any]:
    """`kind`: from real to complex numbers ("r2c"), back ("c2r"), or among complex ones ("c2c")."""

    def handler(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
        data, dims = args[:2]
        result = func(*args, **kwargs)
        if data.device.type != "meta" or not dims:
            return result
        name = func._schema.name
        recorder.note(result, name)
        made: List[int] = []
        if kind == "c2r":
            data = torch.empty(data.shape, dtype=data.dtype, device="meta")
            made.append(recorder.take(size_of(data), name))
        if _is_copied(data, dims):
            made.append(recorder.take(size_of(data), name))
        recorder.workspace(_workspace(kind, data, result, dims), name)
        for number in reversed(made):
            recorder.drop(number)
        return result

    return handler


def _is_copied(data: Tensor, dims: Any) -> bool:
    """Whether the other dimensions, in the order of their strides, do not lie together as one."""
    dims = [dim % data.dim() for dim in dims]
    others = [dim for dim in range(data.dim()) if dim not in dims]
    strides = data.stride()
    others.sort(key=lambda dim: -strides[dim])
    moved = data.permute(*others, *dims)
    flat = moved.reshape(-1, *moved.shape[len(others) :]) if others else moved.unsqueeze(0)
    return bool(flat.untyped_storage()._cdata != data.untyped_storage()._cdata)


def _workspace(kind: str, data: Tensor, result: Tensor, dims: Any) -> int:
    """Bytes of a plan's workspace."""
    real = result if kind == "c2r" else data
    lengths = [int(real.shape[dim]) for dim in dims]
    complex_side = data if data.is_complex() else result
    if kind != "c2c" and max(_largest_prime(length) for length in lengths) > _LARGEST_PRIME:
        return int(real.numel()) * complex_side.element_size()
    longest = max(lengths) // (1 if kind == "c2c" else 2)
    return prod(complex_side.shape) * complex_side.element_size() if longest > _ONE_KERNEL else 0


def _largest_prime(number: int) -> int:
    found, factor = 1, 2
    while factor * factor <= number:
        while number % factor == 0:
            number, found = number // factor, factor
        factor += 1
    return max(found, number)


FOURIER: Dict[Any, Callable[..., Any]] = {
    aten._fft_r2c.default: _transform("r2c"),
    aten._fft_c2c.default: _transform("c2c"),
    aten._fft_c2r.default: _transform("c2r"),
}
