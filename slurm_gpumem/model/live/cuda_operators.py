"""Operators that CUDA runs otherwise than meta tensors show: workspaces, order, work done in place."""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

import torch
from torch import Tensor

from slurm_gpumem.model.live.fast import NOT_PLAIN, arithmetic, on_meta
from slurm_gpumem.model.trace_types import Convolution

aten = torch.ops.aten
MATMULS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addbmm", "aten::_addmm_activation"}
_DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}


def _convolution(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    result = func(*args, **kwargs)
    recorder.note(result, "aten::convolution")
    recorder.uses_conv = True
    recorder.workspace(0, "aten::convolution", describe("forward", args[0], args[1], result, args[3:9]))
    return result


def _convolution_backward(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Gradients come one after the other: of the input, of the weight, of the bias."""
    gradient, data, weight = args[:3]
    options = args[4:10]
    result = func(*args, **kwargs)
    name = "aten::convolution_backward"
    recorder.uses_conv = True
    for index, call in enumerate(("input", "weight")):
        if result[index] is not None:
            recorder.note(result[index], name)
            recorder.workspace(0, name, describe(call, data, weight, gradient, options))
    return result


def describe(call: str, data: Tensor, weight: Tensor, output: Tensor, options: Any) -> Convolution:
    """What cuDNN is asked for."""
    stride, padding, dilation, transposed, _, groups = options
    last = data.dim() == 4 and (
        (data.is_contiguous(memory_format=torch.channels_last) and not data.is_contiguous())
        or (weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous())
    )
    spatial = data.dim() - 2
    return Convolution(
        call=call,
        dtype=_DTYPES.get(data.dtype, "fp32"),
        batch=(int(data.shape[0]),),
        channels=int(data.shape[1]),
        outputs=int(output.shape[1]),
        size=_ints(data.shape[2:]),
        out_size=_ints(output.shape[2:]),
        kernel=_ints(weight.shape[2:]),
        stride=_spread(stride, spatial),
        padding=_spread(padding, spatial),
        dilation=_spread(dilation, spatial),
        groups=int(groups),
        transposed=bool(transposed),
        channels_last=bool(last),
    )


def _ints(sizes: Any) -> Tuple[int, ...]:
    return tuple(int(size) for size in sizes)


def _spread(values: Any, count: int) -> Tuple[int, ...]:
    sizes = _ints(values)
    return sizes if len(sizes) == count else sizes * count


def _add(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The engine sums gradients in place; under a dispatch mode it believes that it must not."""
    first, second = args[:2]
    if (
        recorder.phase == "backward"
        and not torch.is_grad_enabled()
        and not kwargs
        and isinstance(second, Tensor)
        and first.shape == second.shape
        and first.dtype == second.dtype
        and owned_alone(first)
    ):
        return first
    result = arithmetic(args, kwargs) if on_meta(args) else NOT_PLAIN
    return func(*args, **kwargs) if result is NOT_PLAIN else result


def owned_alone(tensor: Tensor) -> bool:
    """Whether only the engine holds a tensor that it passed to an operator."""
    count, shared = tensor._use_count(), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)  # type: ignore[attr-defined]
    return bool(count <= _ALONE[0] and shared <= _ALONE[1])


_ALONE = (4, 2)

HANDLERS: Dict[Any, Callable[..., Any]] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.add.Tensor: _add,
}
