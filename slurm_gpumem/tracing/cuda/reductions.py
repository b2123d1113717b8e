"""Sums with buffers in global memory that meta tensors do not show.

If a sum does not run along adjacent elements, threads are assigned along its results, and blocks
that share the work of one result exchange it through a buffer (estimators/workspaces/convolutions.py).
"""

from __future__ import annotations

from math import prod
from typing import Any, Callable, Dict, Optional, Sequence

import torch
from torch import Tensor

from slurm_gpumem.summaries.trace_types import Reduction
from slurm_gpumem.tracing.engine.recording import Recording

aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)


def reduction_of(data: Tensor, dims: Any) -> Optional[Reduction]:
    """How a sum over these dimensions is computed; None if it needs no significant buffer."""
    if not dims or not data.numel():
        return None
    reduced = {dim % max(data.dim(), 1) for dim in dims}
    # From the largest stride to the smallest.
    strides: Sequence[int] = data.stride()
    order = [dim for dim in range(data.dim()) if data.shape[dim] > 1]
    order.sort(key=lambda dim: strides[dim], reverse=True)
    if not order or order[-1] in reduced or not _dense(data, order):
        return None
    run = 1
    for dim in reversed(order):
        if dim in reduced:
            break
        run *= int(data.shape[dim])
    inputs = prod(int(data.shape[dim]) for dim in order if dim in reduced)
    outputs = prod(int(data.shape[dim]) for dim in order if dim not in reduced)
    return long_sum(inputs, outputs, run)


def long_sum(inputs: int, outputs: int, run: int) -> Reduction:
    """`outputs` sums of `inputs` numbers each; `run` of the results are adjacent in memory."""
    vector = next(count for count in (4, 2, 1) if run % count == 0)
    return Reduction((inputs,), (outputs,), vector)


def _dense(data: Tensor, order: Any) -> bool:
    size = 1
    for dim in reversed(order):
        if data.stride(dim) != size:
            return False
        size *= int(data.shape[dim])
    return True


def _partial(result: Tensor) -> int:
    """Bytes of a partial sum: single precision for half-precision tensors too."""
    return max(4, result.element_size())


def _spread(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Standard deviation and variance: a partial result is a mean, a sum of squares and two counts."""
    result = func(*args, **kwargs)
    recorder.note_result(result, func._schema.name)
    one = result[0] if isinstance(result, tuple) else result
    reduction = reduction_of(args[0], args[1]) if len(args) > 1 else None
    if reduction is not None and not args[0].is_complex():
        recorder.workspace(0, func._schema.name, reduction._replace(number=4 * _partial(one)))
    return result


def _summing(place: int) -> Callable[..., Any]:
    """A handler for an operator that sums over the dimensions in its argument number `place`."""

    def handler(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
        data, name = args[0], func._schema.name
        result = func(*args, **kwargs)
        recorder.note(result, name)
        widened = data.dtype in _HALF and result.dtype == torch.float32
        if result.dtype != data.dtype and not widened and not data.is_complex():
            # Booleans and narrow integers are copied to the result's type first.
            recorder.workspace(data.numel() * result.element_size(), name)
            return result
        reduction = reduction_of(data, args[place]) if len(args) > place else None
        if reduction is not None:
            recorder.workspace(0, name, reduction._replace(number=_partial(result)))
        return result

    return handler


SUMS: Dict[Any, Callable[..., Any]] = {
    aten.sum.default: _summing(1),
    aten.sum.dim_IntList: _summing(1),
    aten.mean.dim: _summing(1),
    aten.linalg_vector_norm.default: _summing(2),
    aten.std.correction: _spread,
    aten.var.correction: _spread,
    aten.std_mean.correction: _spread,
    aten.var_mean.correction: _spread,
}
