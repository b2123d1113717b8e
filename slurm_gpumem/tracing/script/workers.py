"""Loaders with workers: batches are loaded in the script's own process, as a worker would load them.

A worker has a copy of the data set. What it keeps there (samples that were read once) is gone when the epoch
ends, unless workers are persistent.
"""

from __future__ import annotations

import copy
from typing import Any, Callable

import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, default_collate

_CONTAINERS = (list, dict, set)
_DEEPEST = 4
"""Data sets inside of data sets: subsets of what was put together."""


def install() -> None:
    """Stand in for every loader's workers."""
    real: Callable[..., None] = DataLoader.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        self.gpumem_workers = int((args[5] if len(args) > 5 else kwargs.get("num_workers")) or 0)
        self.gpumem_persistent = bool(kwargs.get("persistent_workers"))
        if len(args) > 5:
            args = (*args[:5], 0, *args[6:])
        for name, value in (("num_workers", 0), ("pin_memory", False), ("persistent_workers", False)):
            if name in kwargs:
                kwargs[name] = value
        for name in ("prefetch_factor", "multiprocessing_context", "pin_memory_device", "timeout"):
            kwargs.pop(name, None)
        real(self, *args, **kwargs)

    DataLoader.__init__ = init  # type: ignore[method-assign]
    begin = DataLoader._get_iterator

    def iterator(self: Any) -> Any:
        found: Any = begin(self)
        fetcher: Any = getattr(found, "_dataset_fetcher", None)
        workers: int = getattr(self, "gpumem_workers", 0)
        if fetcher is not None and workers:
            if fetcher.collate_fn is default_collate:
                fetcher.collate_fn = _collate
            if not self.gpumem_persistent:
                fetcher.dataset = copied(fetcher.dataset)
        return found

    DataLoader._get_iterator = iterator  # type: ignore[method-assign]


def _collate(batch: Any) -> Any:
    """A worker stacks samples into shared memory, in order; elsewhere a stack lies as its samples do."""
    return pytree.tree_map_only(torch.Tensor, torch.Tensor.contiguous, default_collate(batch))


def copied(value: Any, depth: int = 0) -> Any:
    """A data set with its own lists and dicts, whose items are shared: what a look at it keeps there is in
    the copy only."""
    if isinstance(value, _CONTAINERS):
        made = copy.copy(value)
        if isinstance(made, list) and made and isinstance(made[0], Dataset):
            made[:] = [copied(one, depth + 1) for one in made]
        return made
    kind: Any = type(value)
    # One that tidies up when it is gone would close the files of the script's own.
    plain = kind.__new__ is object.__new__ and not hasattr(kind, "__del__")
    if not isinstance(value, Dataset) or not plain or depth > _DEEPEST:
        return value
    twin: Any = object.__new__(kind)
    for name, field in vars(value).items():
        vars(twin)[name] = copied(field, depth + 1)
    return twin
