"""Texts of different lengths: the second batch that a loader gives is made of the longest ones.

A batch is padded to its longest text, so a training needs most when the longest one comes by, which a few
traced steps would hardly see. Only data sets whose items have `input_ids` are asked, for a few seconds.
"""

from __future__ import annotations

import time
from typing import Any, List, NamedTuple, Optional

from slurm_gpumem.text import count

_MOST_S = 4.0
_FIELD = "input_ids"
_SECOND = 1


class _Longest(NamedTuple):
    """Numbers of the longest items, and what was found on the way."""

    items: List[int]
    tokens: int
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
            longest = _longest(self._dataset, len(found))
        if longest is None:
            return found
        of = count(len(self._dataset), "text")
        part = "" if longest.looked_at == len(self._dataset) else f" ({longest.looked_at:,} were looked at)"
        tracer.note(f"the longest of {of}{part}, {longest.tokens:,} tokens, was in the traced batches")
        return longest.items

    kind._next_index = next_index  # type: ignore[method-assign]


def _longest(dataset: Any, wanted: int) -> Optional[_Longest]:
    """The longest items; None where items have no texts, or all are as long."""
    try:
        size = len(dataset)
        if _length(dataset[0]) is None:
            return None
    except (TypeError, KeyError, IndexError, NotImplementedError):
        return None  # no data set that can be asked for an item
    lengths = {}
    until = time.monotonic() + _MOST_S
    # In strides, so that what time allows is spread over all of it.
    for start in range(stride := max(1, size // 1000)):
        for number in range(start, size, stride):
            length = _length(dataset[number])
            if length is None:
                return None
            lengths[number] = length
        if time.monotonic() > until:
            break
    if min(lengths.values()) == max(lengths.values()):
        return None
    items = sorted(lengths, key=lambda number: -lengths[number])[:wanted]
    return _Longest(items, lengths[items[0]], len(lengths))


def _length(item: Any) -> Optional[int]:
    """Of a text; None for other things."""
    tokens = item.get(_FIELD) if isinstance(item, dict) else None
    shape = getattr(tokens, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) == 1 else None
    return len(tokens) if isinstance(tokens, (list, tuple)) else None
