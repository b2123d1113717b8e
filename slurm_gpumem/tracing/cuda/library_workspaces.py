"""What cuSOLVER's decompositions and cuFFT's transforms hold beside their results.

Decompositions were measured on an H200 with torch 2.11. The first use of a thread makes a handle, which
takes memory outside of the allocator; it is noted as a block that stays, which comes to the same. Systems
of several small matrices are solved by cuBLAS, without one.
"""

from __future__ import annotations

from math import prod
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch import Tensor

from slurm_gpumem.tracing.cuda.layouts import size_of
from slurm_gpumem.tracing.engine.memo import overloads
from slurm_gpumem.tracing.engine.recording import Recording
from slurm_gpumem.units import MIB

aten = torch.ops.aten
HANDLE = 96 * MIB
_SOLVED_BY_CUBLAS = ("aten::_linalg_solve_ex", "aten::linalg_inv_ex")
"""cuSOLVER factors one matrix, and cuBLAS solves with the factors."""
_LARGE = 1024
"""Sides from which the eigenvalues of a matrix are found by the method that needs much memory."""


def _batches(data: Tensor) -> int:
    return prod(int(size) for size in data.shape[:-2])


def _side(data: Tensor) -> int:
    return int(data.shape[-1])


def _nothing(data: Tensor) -> int:
    return 0


def _twice(data: Tensor) -> int:
    """A copy and its factors."""
    return 2 * size_of(data)


def _once(data: Tensor) -> int:
    return size_of(data)


def _eigenvalues(data: Tensor) -> int:
    if _batches(data) > 1:
        return size_of(data) // 5
    return int(size_of(data) * (4.1 if _side(data) >= _LARGE else 1.1))


def _singular_values(data: Tensor) -> int:
    return int(size_of(data) * (3.1 if _batches(data) == 1 else 1.3))


def _rotations(data: Tensor) -> int:
    return 2 * MIB + 4096 * _side(data) if _batches(data) == 1 else size_of(data) // 2


def _solver(at: int, extra: Callable[[Tensor], int], factors: bool) -> Callable[..., Any]:
    """`at`: which argument is the matrix; `factors`: whether cuBLAS does it for several matrices."""

    def handler(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        data, name = args[at], func._schema.name
        if data.device.type != "meta":
            return result
        recorder.note_result(result, name)
        if factors and (_batches(data) > 1 or name in _SOLVED_BY_CUBLAS):
            recorder.cublas(name)
        if not factors or _batches(data) == 1:
            recorder.uses_matmul = True  # its library is loaded, without a workspace of its own
            recorder.once(f"cusolver {recorder.thread}", HANDLE, "cusolver")
        recorder.workspace(extra(data), name)
        return result

    return handler


def _handlers() -> Dict[Any, Callable[..., Any]]:
    table: Tuple[Tuple[str, int, Callable[[Tensor], int], bool], ...] = (
        ("linalg_cholesky_ex", 0, _nothing, False),
        ("_cholesky_solve_helper", 1, _once, False),
        ("cholesky_solve", 1, _once, False),
        ("cholesky_inverse", 0, _once, False),
        ("_linalg_solve_ex", 0, _nothing, True),
        ("linalg_lu_factor_ex", 0, _nothing, True),
        ("_linalg_slogdet", 0, _nothing, True),
        ("_linalg_det", 0, _nothing, True),
        ("linalg_inv_ex", 0, _twice, True),
        ("_linalg_eigh", 0, _eigenvalues, False),
        ("_linalg_svd", 0, _singular_values, False),
        ("linalg_qr", 0, _rotations, False),
    )
    return {
        one: _solver(at, extra, factors)
        for name, at, extra, factors in table
        for one in overloads(name, only=["default"])
    }


SOLVERS = _handlers()
UNMEASURED = {
    "aten::linalg_eig",
    "aten::linalg_lstsq",
    "aten::linalg_ldl_factor_ex",
    "aten::geqrf",
    "aten::ormqr",
}
"""Others of its operators."""


# Fourier transforms on CUDA: what cuFFT and the code around it hold beside the result.
#
# cuFFT takes one batch dimension, so a transform along another dimension than the last copies its input; the
# transform back to real numbers overwrites its input, and gets a copy. The workspace of a plan comes from
# PyTorch's allocator. As read in ATen's SpectralOps.cu, and watched on an H200 with torch 2.11 for lengths
# from 8 to 1,048,576: no workspace, but for lengths with a prime factor above 127 (of real numbers) and for
# transforms that are too long for one kernel.


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
