"""`scaled_dot_product_attention` by the kernel that PyTorch would choose on CUDA."""

from __future__ import annotations

import math
from typing import Optional

import torch
from torch import Tensor

aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_FLASH_HEAD = 256
_CUDNN_HEAD = 128


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
    if query.dim() != 4 or not _fused(query, key, value, attn_mask):
        return _math(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    needs = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    if query.dtype in _HALF and _cudnn_takes(query, key, value):
        bias = None if attn_mask is None else _numbers(attn_mask, query)
        return aten._scaled_dot_product_cudnn_attention(  # type: ignore[no-any-return]
            query, key, value, bias, needs, dropout_p, is_causal, scale=scale
        )[0]
    if query.dtype in _HALF and attn_mask is None and _flash_takes(query, key, value):
        size = query.shape[-1]
        pad = -size % 8
        if pad:
            query, key, value = (torch.nn.functional.pad(t, (0, pad)) for t in (query, key, value))
        factor = scale if scale is not None else 1 / math.sqrt(size)
        result = aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=factor
        )[0]
        return result[..., :size] if pad else result  # type: ignore[no-any-return]
    if enable_gqa and key.shape[1] != query.shape[1]:
        return _math(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    bias = None if attn_mask is None else _bias(attn_mask, query, key)
    return aten._scaled_dot_product_efficient_attention(  # type: ignore[no-any-return]
        query, key, value, bias, needs, dropout_p, is_causal, scale=scale
    )[0]


def _fused(query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor]) -> bool:
    """What every fused kernel asks for: rows without gaps, and a mask that is not learned."""
    if any(t.stride(-1) != 1 and t.shape[-1] > 1 for t in (query, key, value)):
        return False
    return mask is None or not (mask.requires_grad and torch.is_grad_enabled())


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
    """A mask of truth values as numbers to be added."""
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), -math.inf)
    return mask if mask.dtype == query.dtype else mask.to(query.dtype)


def _bias(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """A mask as the kernel takes it: numbers of the query's type, rows aligned to 16 bytes."""
    mask = _numbers(mask, query)
    length = mask.shape[-1]
    if length % 16:
        mask = torch.nn.functional.pad(mask, (0, 16 - length % 16))[..., :length]
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
    return aten._scaled_dot_product_attention_math(  # type: ignore[no-any-return]
        query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]
