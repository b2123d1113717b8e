"""What the fused attention kernels allocate besides their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict

import torch
from torch import Tensor

if TYPE_CHECKING:
    from slurm_gpumem.tracing.engine.recorder import Recorder

aten = torch.ops.aten
_CUDNN_LEAST = 256


def _efficient_attention(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """Seed and offset of the random numbers stay on the CPU."""
    out, rows, seed, offset = func(*args, **kwargs)
    recorder.note(out, "aten::_scaled_dot_product_efficient_attention")
    recorder.note(rows, "aten::_scaled_dot_product_efficient_attention")
    recorder.skip(seed)
    recorder.skip(offset)
    return out, rows, seed, offset


def _efficient_attention_backward(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """Gradients first, then in fp32 the product of output and gradient, its sums, the kernel's workspace."""
    name = "aten::_scaled_dot_product_efficient_attention_backward"
    result = func(*args, **kwargs)
    query = args[1]
    for gradient in result:
        if gradient is not None:
            recorder.note(gradient, name)
    rows, heads, length, size = (int(n) for n in query.shape)
    sums = rows * heads * length * 4
    if query.element_size() == 2:
        # In half precision the kernel computes the product itself.
        kept = recorder.take(sums, name)
    else:
        product = recorder.take(rows * heads * length * int(args[3].shape[-1]) * query.element_size(), name)
        first = recorder.take(sums, name)
        kept = recorder.take(sums, name)
        recorder.drop(first)
        recorder.drop(product)
    blocks = -(-length // 64)
    space = recorder.take(rows * heads * blocks * (64 * -(-size // 64) * 64 * 4 + 16), name)
    recorder.drop(kept)
    recorder.drop(space)
    return result


def _flash_attention_backward(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """Gradients of the query are summed in single precision, in rows and heads of whole tiles."""
    name = "aten::_scaled_dot_product_flash_attention_backward"
    result = func(*args, **kwargs)
    for gradient in result:
        if isinstance(gradient, Tensor):
            recorder.note(gradient, name)
    rows, heads, length, size = (int(n) for n in args[1].shape)
    long, wide = -(-length // 128) * 128, -(-size // 32) * 32
    sums = recorder.take(rows * heads * long * 4, name)
    recorder.workspace(rows * heads * long * wide * 4, name)
    recorder.drop(sums)
    return result


def _cudnn_attention(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """Seed and offset are allocated before the result."""
    name = "aten::_scaled_dot_product_cudnn_attention"
    result = func(*args, **kwargs)
    for index in (6, 7, 0, 1):
        if isinstance(result[index], Tensor):
            recorder.note(result[index], name)
    recorder.workspace(_CUDNN_LEAST, name)
    return result


def _cudnn_attention_backward(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """The query's gradient is summed in single precision, next to one number per row.

    Keys and values that several heads share get a gradient for each head first.
    """
    name = "aten::_scaled_dot_product_cudnn_attention_backward"
    result = func(*args, **kwargs)
    for gradient in result:
        if isinstance(gradient, Tensor):
            recorder.note(gradient, name)
    rows, heads, length, size = (int(n) for n in args[1].shape)
    space = rows * heads * length * (size + 1) * 4 + _CUDNN_LEAST
    for shared in args[2:4]:
        if shared.shape[1] != heads:
            space += shared.numel() // int(shared.shape[1]) * heads * shared.element_size()
    recorder.workspace(space, name)
    return result


ATTENTION: Dict[Any, Callable[..., Any]] = {
    aten._scaled_dot_product_flash_attention_backward.default: _flash_attention_backward,
    aten._scaled_dot_product_efficient_attention.default: _efficient_attention,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_attention_backward,
    aten._scaled_dot_product_cudnn_attention.default: _cudnn_attention,
    aten._scaled_dot_product_cudnn_attention_backward.default: _cudnn_attention_backward,
}
