"""`scaled_dot_product_attention` with the kernel that PyTorch would choose on CUDA."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Optional

import torch
from torch import Tensor

from slurm_gpumem.tracing.engine.recording import Recording

aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_FLASH_HEAD = 256
_CUDNN_HEAD = 128
_ROW = 8


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Tensor:
    """What F.scaled_dot_product_attention allocates on a GPU of compute capability 8.0 and later."""
    masks = () if attn_mask is None else (attn_mask,)
    plain = query.dim() == 4 and _without_gaps(query, key, value, *masks)
    # Every fused kernel refuses heads that must be repeated, unless it is told that they are shared.
    plain = plain and (enable_gqa or query.shape[1] == key.shape[1] == value.shape[1])
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = _numbers(attn_mask, query)
    if not plain:
        return _math(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    needs = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    learned = attn_mask is not None and attn_mask.requires_grad and torch.is_grad_enabled()
    if query.dtype in _HALF and not learned and allowed("cudnn") and _cudnn_takes(query, key, value):
        bias = None if attn_mask is None else attn_mask.to(query.dtype)
        return aten._scaled_dot_product_cudnn_attention(  # type: ignore[no-any-return]
            query, key, value, bias, needs, dropout_p, is_causal, scale=scale
        )[0]
    if query.dtype in _HALF and attn_mask is None and allowed("flash") and _flash_takes(query, key, value):
        size = query.shape[-1]
        pad = -size % 8
        if pad:
            query, key, value = (torch.nn.functional.pad(t, (0, pad)) for t in (query, key, value))
        factor = scale if scale is not None else 1 / math.sqrt(size)
        result = aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=factor
        )[0]
        return result[..., :size] if pad else result  # type: ignore[no-any-return]
    spread = enable_gqa and key.shape[1] != query.shape[1]
    if spread or not allowed("mem_efficient") or not _efficient_takes(query, key, value):
        return _math(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    bias = None if attn_mask is None else _bias(attn_mask, query, key)
    attn_mask = None  # if it was copied, only the copy stays alive
    return aten._scaled_dot_product_efficient_attention(  # type: ignore[no-any-return]
        query, key, value, bias, needs, dropout_p, is_causal, scale=scale
    )[0]


def allowed(kernel: str) -> bool:
    """Whether code has left this kernel on (`sdpa_kernel`, `torch.backends.cuda.enable_flash_sdp`)."""
    return bool(getattr(torch._C, f"_get_{kernel}_sdp_enabled", lambda: True)())


def _without_gaps(*tensors: Tensor) -> bool:
    """What every fused kernel requires, also of the mask."""
    return all(t.stride(-1) == 1 or t.shape[-1] <= 1 for t in tensors)


def _efficient_takes(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Rows that are a multiple of 16 bytes."""
    return all(t.shape[-1] * t.element_size() % 16 == 0 for t in (query, key, value))


def _flash_takes(query: Tensor, key: Tensor, value: Tensor) -> bool:
    return bool(
        query.shape[-1] == key.shape[-1] == value.shape[-1]
        and query.shape[-1] <= _FLASH_HEAD
        and query.shape[2] > 0
        and key.shape[2] > 0
    )


def _cudnn_takes(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """What Hopper's first choice for half precision accepts."""
    sizes = (query.shape[-1], key.shape[-1], value.shape[-1])
    return bool(
        all(size % 8 == 0 and size <= _CUDNN_HEAD for size in sizes)
        and query.shape[2] > 1
        and key.shape[2] > 1
        and query.shape[1] % key.shape[1] == 0
    )


def _numbers(mask: Tensor, query: Tensor) -> Tensor:
    """A boolean mask as numbers to be added; the two values to choose from are on the GPU for a moment."""
    shown, hidden = (torch.empty((), dtype=query.dtype, device=query.device) for _ in range(2))
    return torch.where(mask, shown, hidden)


def _bias(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """A mask in the form the kernel needs: the query's type, rows of a multiple of eight."""
    mask = mask.to(query.dtype)
    length = mask.shape[-1]
    if length % _ROW:
        mask = torch.nn.functional.pad(mask, (0, _ROW - length % _ROW))[..., :length]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _math(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Optional[Tensor],
    dropout_p: float,
    is_causal: bool,
    scale: Optional[float],
    enable_gqa: bool,
) -> Tensor:
    """Attention without a fused kernel; PyTorch's own makes unnecessary copies under a dispatch mode."""
    dtype = query.dtype
    if dtype in _HALF:
        query, key, value = query.float(), key.float(), value.float()
    factor = math.sqrt(scale if scale is not None and scale > 0 else 1 / math.sqrt(max(query.shape[-1], 1)))
    query = query * factor
    if is_causal:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        mask = _numbers(mask, query)
    if enable_gqa and query.dim() > 2 and key.shape[-3] != query.shape[-3]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scores = torch.matmul(query, key.transpose(-2, -1) * factor)
    if mask is not None:
        scores = scores.add_(mask)
    weights: Tensor = aten._safe_softmax(scores, -1)
    if dropout_p > 0:
        weights = torch.dropout(weights, dropout_p, True)
    narrow = weights.to(dtype)
    result = torch.matmul(weights, value).to(dtype)
    del narrow
    return result


# What the fused attention kernels allocate besides their results.


_CUDNN_LEAST = 256


def _efficient_attention(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Seed and offset of the random numbers stay on the CPU."""
    out, rows, seed, offset = func(*args, **kwargs)
    recorder.note(out, "aten::_scaled_dot_product_efficient_attention")
    recorder.note(rows, "aten::_scaled_dot_product_efficient_attention")
    recorder.skip(seed)
    recorder.skip(offset)
    return out, rows, seed, offset


def _efficient_attention_backward(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
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


def _flash_attention_backward(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
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


def _cudnn_attention(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Seed and offset are allocated before the result."""
    name = "aten::_scaled_dot_product_cudnn_attention"
    result = func(*args, **kwargs)
    for index in (6, 7, 0, 1):
        if isinstance(result[index], Tensor):
            recorder.note(result[index], name)
    recorder.workspace(_CUDNN_LEAST, name)
    return result


def _cudnn_attention_backward(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
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
