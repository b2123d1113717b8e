"""A copy of a model on meta tensors: the same structure and types, no values."""

from __future__ import annotations

import copy
import io
from typing import Any, Dict

import torch
from torch import Tensor, nn

from slurm_gpumem.tracing.sparse_products import sparse_on_meta
from slurm_gpumem.tracing.values import give, small

META = torch.device("meta")


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside `torch.compile` and data-parallel wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def meta_twin(model: nn.Module) -> nn.Module:
    """A copy whose parameters and buffers are meta tensors; the model itself is not changed."""
    if isinstance(model, torch.jit.ScriptModule):
        return scripted_twin(model, META)
    known: Dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        known[id(tensor)] = to_meta(tensor)
        if tensor.grad is not None:
            known[id(tensor.grad)] = None
    for tensor in (*model.buffers(), *(p for p in model.parameters() if p.numel() == 1)):
        # Numbers that code may read: depths, tables of indices, a temperature.
        if tensor.device != META and small(tensor) and tensor.layout == torch.strided:
            give(known[id(tensor)], tensor.detach().cpu().clone())
    for module in model.modules():
        for value in vars(module).values():
            # Weights that a hook computes before each pass (weight norm, pruning) are plain attributes.
            if isinstance(value, Tensor) and value.grad_fn is not None:
                known[id(value)] = to_meta(value.detach())
    twin: nn.Module = copy.deepcopy(model, known)
    return twin


def scripted_twin(model: torch.jit.ScriptModule, device: torch.device) -> nn.Module:
    """A copy of a model made by `torch.jit.script`; with any other copy its parameters cannot be trained."""
    kept = io.BytesIO()
    torch.jit.save(model, kept)
    kept.seek(0)
    twin: nn.Module = torch.jit.load(kept, map_location=device)
    return twin


def to_meta(tensor: Tensor) -> Tensor:
    """The same tensor without its values."""
    if tensor.device == META:
        return tensor
    if tensor.layout != torch.strided:
        empty = sparse_on_meta(tensor)
    else:
        empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty
