"""Enable activation checkpointing: with the library's own switch, otherwise around every repeated block."""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, List

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from slurm_gpumem.errors import TargetError


def checkpoint_blocks(model: Any) -> str:
    """Turn it on; returns what was done, in words. Raises TargetError if the model has no blocks."""
    if getattr(model, "supports_gradient_checkpointing", False):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return "checkpointing: transformers' own"
    if hasattr(model, "set_grad_checkpointing"):
        model.set_grad_checkpointing(True)
        return "checkpointing: timm's own"
    blocks = repeated_blocks(model)
    if not blocks:
        raise TargetError(
            "--checkpointing: the model has no repeated blocks to checkpoint; add checkpointing to its code"
        )
    for block in blocks:
        # A subclass, not a new attribute: copies of the model stay checkpointed.
        kind = type(block)
        block.__class__ = type(kind.__name__, (kind,), {"forward": _checkpointed(kind)})
    return f"checkpointing: each of the {len(blocks)} {type(blocks[0]).__name__} blocks"


def repeated_blocks(model: nn.Module) -> List[nn.Module]:
    """The outermost modules that occur several times and contain layers."""
    kinds: Counter[type] = Counter(type(m) for m in model.modules() if list(m.children()))
    plain = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
    found: List[nn.Module] = []

    def walk(module: nn.Module) -> None:
        for child in module.children():
            if not isinstance(child, plain) and kinds[type(child)] > 1:
                found.append(child)
            else:
                walk(child)

    walk(model)
    sizes: Dict[type, int] = {}
    for block in found:
        sizes[type(block)] = sizes.get(type(block), 0) + sum(p.numel() for p in block.parameters())
    if not sizes:
        return []
    main = max(sizes, key=lambda kind: sizes[kind])
    return [block for block in found if type(block) is main]


def _checkpointed(kind: Any) -> Any:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not (self.training and torch.is_grad_enabled()):
            return kind.forward(self, *args, **kwargs)
        return checkpoint(lambda *a, **k: kind.forward(self, *a, **k), *args, use_reentrant=False, **kwargs)

    return forward
