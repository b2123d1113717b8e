"""Texts of different lengths: the second batch that a loader gives is made of the longest ones.

A batch is padded to its longest text, so a training needs most when the longest one comes by, which a few
traced steps would hardly see. Data sets are asked for a few seconds: those whose items have `input_ids`, and
those whose items are tensors or lists of numbers that a function of the script's puts together.
"""

from __future__ import annotations

import math
import time
from typing import Any, Callable, List, NamedTuple, Optional

from slurm_gpumem.text import count

_MOST_S = 4.0
_FIELD = "input_ids"
_SECOND = 1
_SPREAD = 1000
"""Items that must have been looked at, where there are as many."""


class _Longest(NamedTuple):
    """Numbers of the longest items, and what was found on the way."""

    items: List[int]
    size: int
    looked_at: int


def install(tracer: Any) -> None:
    """Stand between loaders and their samplers."""
    from torch.utils.data import dataloader

    kind = dataloader._BaseDataLoaderIter
    real = kind._next_index

    def next_index(self: Any) -> Any:
        given = self._gpumem_asked = getattr(self, "_gpumem_asked", -1) + 1
        found = real(self)
        if given != _SECOND or not isinstance(found, list):
            return found
        with tracer.recorder.unnoted():
            longest = _longest(self._dataset, len(found), _tokens)
            text = longest is not None
            if longest is None and _puts_together(self):
                longest = _longest(self._dataset, len(found), _numbers)
        if longest is None:
            return found
        of = count(len(self._dataset), "text" if text else "item")
        part = "" if longest.looked_at == len(self._dataset) else f" ({longest.looked_at:,} were looked at)"
        size = f"{longest.size:,} {'tokens' if text else 'numbers'}"
        tracer.note(f"the longest of {of}{part}, {size}, was in the traced batches")
        return longest.items

    kind._next_index = next_index  # type: ignore[method-assign]


def _puts_together(loader: Any) -> bool:
    """Whether batches have a fixed number of items, and a function that may pad them."""
    from torch.utils.data import BatchSampler, default_collate

    return type(loader._index_sampler) is BatchSampler and loader._collate_fn is not default_collate


def _longest(dataset: Any, wanted: int, length_of: Callable[[Any], Optional[int]]) -> Optional[_Longest]:
    """The longest items; None where an item has no length, or all are as long."""
    try:
        size = len(dataset)
        if length_of(dataset[0]) is None:
            return None
    except (TypeError, KeyError, IndexError, NotImplementedError):
        return None  # no data set that can be asked for an item
    lengths = {}
    until = time.monotonic() + _MOST_S
    # In strides, so that what time allows is spread over all of it.
    stride = max(1, size // _SPREAD)
    for number in (number for start in range(stride) for number in range(start, size, stride)):
        length = length_of(dataset[number])
        if length is None:
            return None
        lengths[number] = length
        if time.monotonic() > until:
            if len(lengths) >= min(size, _SPREAD):
                break
            if length_of is _numbers:
                return None  # pictures: to look at them all takes too long
    if min(lengths.values()) == max(lengths.values()):
        return None
    items = sorted(lengths, key=lambda number: -lengths[number])[:wanted]
    return _Longest(items, lengths[items[0]], len(lengths))


def _tokens(item: Any) -> Optional[int]:
    """Of a text; None for other things."""
    tokens = item.get(_FIELD) if isinstance(item, dict) else None
    shape = getattr(tokens, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) == 1 else None
    return len(tokens) if isinstance(tokens, (list, tuple)) else None


def _numbers(item: Any) -> Optional[int]:
    """Of all tensors, arrays and lists in an item; None where it has other things."""
    if isinstance(item, (int, float)):
        return 1
    if hasattr(item, "shape"):
        return int(math.prod(item.shape))
    if not isinstance(item, (list, tuple, dict)):
        return None
    parts = [_numbers(part) for part in (item.values() if isinstance(item, dict) else item)]
    return None if None in parts else sum(part for part in parts if part is not None)
