"""The bytes of tensors that are alive in FakeTensorMode, which has no count of its own."""

from __future__ import annotations

import weakref
from typing import Any, Iterable

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary


class LiveTensors(TorchDispatchMode):
    """Counts the storages that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self._seen = WeakIdKeyDictionary()
        self._now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.add(tree_leaves(out))
        return out

    def add(self, values: Iterable[Any]) -> None:
        """Count the storages of these tensors, each once."""
        for value in values:
            storage = value.untyped_storage() if isinstance(value, torch.Tensor) else None
            if storage is not None and storage not in self._seen:
                self._seen[storage] = size = storage.nbytes()
                weakref.finalize(storage, self._gone, size)
                self._now += size
        self.peak = max(self.peak, self._now)

    def _gone(self, size: int) -> None:
        self._now -= size
