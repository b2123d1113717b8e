"""`scaled_dot_product_attention` by the kernel that PyTorch would choose on CUDA."""

from __future__ import annotations

import math
from typing import Optional

import torch
from torch import Tensor

aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_FLASH_HEAD = 256


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
    if query.dim() != 4 or query.requires_grad != query.requires_grad:
        return _math(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
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
    needs = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    return aten._scaled_dot_product_efficient_attention(  # type: ignore[no-any-return]
        query, key, value, bias, needs, dropout_p, is_causal, scale=scale
    )[0]


def _flash_takes(query: Tensor, key: Tensor, value: Tensor) -> bool:
    return bool(
        query.shape[-1] == key.shape[-1] == value.shape[-1]
        and query.shape[-1] <= _FLASH_HEAD
        and query.shape[2] > 0
        and key.shape[2] > 0
    )


def _bias(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """A mask as the kernel takes it: numbers of the query's type, rows aligned to 16 bytes."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), -math.inf)
    elif mask.dtype != query.dtype:
        mask = mask.to(query.dtype)
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
