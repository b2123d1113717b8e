"""How often a script has called its models: what messages call forward passes.

Transforms of images and losses are modules too. A module without weights counts only while nothing that has
weights was called, and only with tensors on the GPU: a model may hide its weights in a list.
"""

from __future__ import annotations

from typing import Any


class Passes:
    """Counts calls of modules by the script itself."""

    def __init__(self) -> None:
        self._models = 0
        self._others = 0

    @property
    def count(self) -> int:
        """Of models, where there are any."""
        return self._models or self._others

    def add(self, module: Any, given: Any) -> bool:
        """One more call; whether it counts."""
        if next(iter(module.parameters()), None) is not None:
            self._models += 1
            return True
        if self._models or not _on_gpu(given):
            return False
        self._others += 1
        return True


def _on_gpu(given: Any) -> bool:
    import torch  # here only: messages of traces are made where there is no torch
    from torch.utils import _pytree as pytree

    with torch._C.DisableTorchFunction():
        tensors = (one for one in pytree.tree_leaves(given) if isinstance(one, torch.Tensor))
        return any(one.device.type == "meta" for one in tensors)
