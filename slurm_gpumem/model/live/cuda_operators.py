"""Operators that CUDA runs otherwise than meta tensors show: workspaces, order, work done in place."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Tuple

import torch
from torch import Tensor

from slurm_gpumem.model.live.attention_kernels import ATTENTION
from slurm_gpumem.model.live.cuda_scratch import SCRATCH
from slurm_gpumem.model.live.fast import NOT_PLAIN, arithmetic, like, on_meta
from slurm_gpumem.model.trace_types import Convolution, Reduction

aten = torch.ops.aten
MATMULS = {
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::addbmm",
    "aten::_addmm_activation",
}
_DTYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float64: "fp64",
}


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
    if _bias_of_product(recorder, first, second):
        return aten.alias(first)
    result = arithmetic(args, kwargs) if on_meta(args) else NOT_PLAIN
    return func(*args, **kwargs) if result is NOT_PLAIN else result


def _into_zeros(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Derivatives of selections write into fresh zeros; under a dispatch mode they copy them first."""
    first = args[0]
    if recorder.phase == "backward" and not torch.is_grad_enabled() and on_meta(args):
        block = recorder.block_of(first)
        if block is not None and block.operator in _ZEROS:
            return first
    return func(*args, **kwargs)


def _bias_of_product(recorder: Any, first: Any, second: Any) -> bool:
    """A linear layer over a tensor with gaps adds its bias to the product in place."""
    if not isinstance(second, Tensor) or second.dim() != 1 or not second.is_leaf or first.dim() < 2:
        return False
    block = recorder.block_of(first)
    return block is not None and block.operator == "aten::mm" and first.shape[-1] == second.shape[0]


def _dropout(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The mask is allocated before the result."""
    data = args[0]
    mask = torch.empty(data.shape, dtype=torch.bool, device=data.device)
    recorder.note(mask, "aten::native_dropout")
    return like(data), mask


def _sum(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """A long sum over leading dimensions meets in a buffer of global memory."""
    data = args[0]
    result = func(*args, **kwargs)
    recorder.note(result, "aten::sum")
    if result.dtype != data.dtype and not (data.dtype in _HALF and result.dtype == torch.float32):
        # Truth values and narrow whole numbers are copied to the result's type first.
        recorder.workspace(data.numel() * result.element_size(), "aten::sum")
        return result
    reduction = reduction_of(data, args[1]) if len(args) > 1 else None
    if reduction is not None:
        recorder.workspace(0, "aten::sum", reduction)
    return result


def reduction_of(data: Tensor, dims: Any) -> Optional[Reduction]:
    """A sum over the first dimensions of a contiguous tensor; None for every other one."""
    reduced = sorted(dim % max(data.dim(), 1) for dim in dims or ())
    if not reduced or reduced != list(range(len(reduced))) or len(reduced) == data.dim():
        return None
    if not data.is_contiguous():
        return None
    inputs = outputs = 1
    for dim, size in enumerate(data.shape):
        if dim in reduced:
            inputs *= int(size)
        else:
            outputs *= int(size)
    vector = next(count for count in (4, 2, 1) if int(outputs) % count == 0)
    if inputs < 1 or outputs < 1:
        return None
    return Reduction((inputs,), (outputs,), vector)


def _safe_softmax(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Rows that are masked from end to end are looked for with a mask of the whole tensor."""
    result = func(*args, **kwargs)
    recorder.note(result, "aten::_safe_softmax")
    mask = recorder.take(result.numel(), "aten::_safe_softmax")
    rows = recorder.take(result.numel() // max(int(result.shape[-1]), 1), "aten::_safe_softmax")
    recorder.workspace(result.element_size(), "aten::_safe_softmax")
    recorder.drop(rows)
    recorder.drop(mask)
    return result


def _softmax_backward(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The product of gradient and output lives beside the result."""
    gradient, output = args[:2]
    result = func(*args, **kwargs)
    recorder.note(result, func._schema.name)
    recorder.workspace(
        gradient.numel() * max(gradient.element_size(), output.element_size()),
        func._schema.name,
    )
    return result


def _layer_norm(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Tensors with gaps are copied for as long as the operator runs."""
    name = func._schema.name
    backward = "backward" in name
    copied = [t for t in (args[:2] if backward else args[:1]) if not t.is_contiguous()]
    copies = [recorder.take(t.numel() * t.element_size(), name) for t in copied]
    result = func(*args, **kwargs)
    recorder.note_result(result, name)
    for copy in copies:
        recorder.drop(copy)
    return result


def owned_alone(tensor: Tensor) -> bool:
    """Whether only the engine holds a tensor that it passed to an operator."""
    count, shared = tensor._use_count(), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)  # type: ignore[attr-defined]
    return bool(count <= _ALONE[0] and shared <= _ALONE[1])


_ALONE = (4, 2)
_HALF = (torch.float16, torch.bfloat16)
_ZEROS = {"aten::new_zeros", "aten::zeros", "aten::zeros_like"}

HANDLERS: Dict[Any, Callable[..., Any]] = {
    **ATTENTION,
    **SCRATCH,
    aten.scatter.src: _into_zeros,
    aten.scatter.value: _into_zeros,
    aten.scatter_add.default: _into_zeros,
    aten.index_add.default: _into_zeros,
    aten.index_put.default: _into_zeros,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.add.Tensor: _add,
    aten.native_dropout.default: _dropout,
    aten.sum.dim_IntList: _sum,
    aten.sum.default: _sum,
    aten._safe_softmax.default: _safe_softmax,
    aten._softmax_backward_data.default: _softmax_backward,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm,
}
