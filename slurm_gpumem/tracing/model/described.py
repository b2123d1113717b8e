"""What a traced model turned out to be: the type of its weights, and the PyTorch that traced it."""

from __future__ import annotations

from collections import Counter
from typing import Counter as CounterType

import torch
from torch import nn


def torch_version() -> str:
    """The version that traces; one without CUDA says so, because jobs on a GPU run another build."""
    version = str(torch.__version__)
    return version if torch._C._has_cuda or "+" in version else f"{version}+cpu"


def precision_of(model: nn.Module, stated: str) -> str:
    """The precision that was asked for; "bf16" where the model's own weights mostly are."""
    if stated not in ("fp32", "tf32"):
        return stated
    sizes: CounterType[torch.dtype] = Counter()
    for parameter in model.parameters():
        sizes[parameter.dtype] += parameter.numel()
    most = sizes.most_common(1)
    return "bf16" if most and most[0][0] == torch.bfloat16 else stated
