"""What a traced model turned out to be: the type of its weights, whether it checkpoints activations."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import Any, Iterator, List
from typing import Counter as CounterType

import torch
import torch.utils.checkpoint as checkpointing
from torch import nn

_INSIDE = ("_checkpoint_without_reentrant_generator", "CheckpointFunction")
"""What torch's checkpoint() looks up at each call, by whichever name the model imported it."""


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


@contextmanager
def checkpointing_seen() -> Iterator[List[str]]:
    """A list that has something in it once the model's code has checkpointed activations."""
    seen: List[str] = []
    known = {name: getattr(checkpointing, name) for name in _INSIDE if hasattr(checkpointing, name)}
    for name, real in known.items():
        setattr(checkpointing, name, _noticed(real, name, seen))
    try:
        yield seen
    finally:
        for name, real in known.items():
            setattr(checkpointing, name, real)


def _noticed(real: Any, name: str, seen: List[str]) -> Any:
    if isinstance(real, type):

        class Noticed(real):  # type: ignore[misc]
            @classmethod
            def apply(cls, *args: Any, **kwargs: Any) -> Any:
                seen.append(name)
                return real.apply(*args, **kwargs)

        return Noticed

    def noticed(*args: Any, **kwargs: Any) -> Any:
        seen.append(name)
        return real(*args, **kwargs)

    return noticed
