"""Texts of different lengths: one batch that a loader gives is made of the longest ones.

A batch is padded to its longest text, so a training needs most when the longest one comes by, which a few
traced steps would hardly see. It comes after the others: what PyTorch has kept for shorter batches does not
hold it, while what is kept for it holds all that come later. Data sets are asked for a few seconds: those
whose items have `input_ids`, and those whose items are tensors or lists of numbers that a function of the
script's puts together.
"""

from __future__ import annotations

import math
import time
from typing import Any, Callable, List, NamedTuple, Optional

from slurm_gpumem.text import count
from slurm_gpumem.tracing.follow.epochs import batches_of
from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder
from slurm_gpumem.tracing.script.workers import copied

_MOST_S = 4.0
_FIELD = "input_ids"
_SECOND = 2
_SPREAD = 1000
"""Items that must have been looked at, where there are as many."""


class _Longest(NamedTuple):
    """Numbers of the longest items, and what they are, in words."""

    items: List[int]
    what: str


def install(recorder: ScriptRecorder, repeats: Callable[[], bool], note: Callable[[str], None]) -> None:
    """Stand between loaders and their samplers."""
    from torch.utils.data import dataloader

    kind = dataloader._BaseDataLoaderIter
    real = kind._next_index

    def next_index(self: Any) -> Any:
        asked = self._gpumem_asked = getattr(self, "_gpumem_asked", 0) + 1
        found = real(self)
        if asked == _SECOND:
            # Now, so that the time that it takes is not taken from the last batches.
            with recorder.unnoted():
                self._gpumem_longest = _of_loader(self, len(found)) if isinstance(found, list) else None
        longest = getattr(self, "_gpumem_longest", None)
        if longest is None or not (repeats() or asked == batches_of(self)):
            return found
        self._gpumem_longest = None
        note(f"the longest of {longest.what}, was in the traced batches")
        return longest.items

    kind._next_index = next_index  # type: ignore[method-assign]


def _of_loader(loader: Any, wanted: int) -> Optional[_Longest]:
    """A loader's longest texts or other items; None where it has none that are longer."""
    dataset = copied(loader._dataset)  # the script itself does not look
    longest = _longest(dataset, wanted, _tokens)
    if longest is None and _puts_together(loader):
        longest = _longest(dataset, wanted, _numbers)
    return longest


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
    kind, unit = ("text", "tokens") if length_of is _tokens else ("item", "numbers")
    part = "" if len(lengths) == size else f" ({len(lengths):,} were looked at)"
    return _Longest(items, f"{count(size, kind)}{part}, {lengths[items[0]]:,} {unit}")


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
