"""The largest batches that training may get: of the longest texts, and of sizes that are drawn.

Texts of different lengths: one batch that a loader gives is made of the longest ones. A batch is padded to
its longest text, so a training needs most when the longest one comes by, which a few traced steps would
hardly see. It comes after the others: what PyTorch has kept for shorter batches does not hold it, while
what is kept for it holds all that come later. Data sets are asked for a few seconds: those whose items
have `input_ids`, and those whose items are tensors or lists of numbers that a function of the script's
puts together.
"""

from __future__ import annotations

import copy
import functools
import math
import random
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch

from slurm_gpumem.text import count
from slurm_gpumem.tracing.follow.answers import tensors_in
from slurm_gpumem.tracing.follow.enough_steps import spent
from slurm_gpumem.tracing.follow.epochs import batches_of
from slurm_gpumem.tracing.own_code import is_users
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


def install_longest(
    recorder: ScriptRecorder, repeats: Callable[[], bool], note: Callable[[str], None]
) -> None:
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


# Batches of random sizes: a function of the script's that puts samples together may draw how large they are.
#
# Training at several scales does so, often for some batches at a time: a few traced batches have one or two
# of the sizes, and a training needs most when the largest comes by. So a function that draws or counts is
# called again with the samples of one batch, for a short time, and the largest batch that came out is one of
# the traced ones. It comes after the others, as the longest texts do.


_MOST_DRAWING_S = 2.0
_MOST_CALLS = 256


def install_random(
    recorder: ScriptRecorder, repeats: Callable[[], bool], note: Callable[[str], None]
) -> None:
    """Stand before every loader's function that puts samples together."""
    kind = torch.utils.data.DataLoader
    real: Callable[..., Any] = kind._get_iterator

    def iterator(self: Any) -> Any:
        found = real(self)
        fetcher = getattr(found, "_dataset_fetcher", None)
        if fetcher is not None and _is_scripts(fetcher.collate_fn):
            if not hasattr(self, "gpumem_collated"):
                self.gpumem_collated = _Collated(fetcher.collate_fn, recorder, repeats, note)
            fetcher.collate_fn = self.gpumem_collated
        return found

    kind._get_iterator = iterator  # type: ignore[method-assign]


class _Collated:
    """A script's function that makes a batch of samples."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        recorder: ScriptRecorder,
        repeats: Callable[[], bool],
        note: Callable[[str], None],
    ) -> None:
        self._function, self._recorder = function, recorder
        self._repeats, self._note = repeats, note
        self._calls = 0
        self._largest: Optional[Tuple[int, Any]] = None
        """Numbers in the largest batch that it made again, and that batch, until it was given."""

    def __call__(self, samples: Any) -> Any:
        self._calls += 1
        if self._calls == _SECOND:
            with self._recorder.unnoted():
                self._largest = _largest(self._function, samples)
        batch = self._function(samples)
        if self._largest is None or not self._repeats():
            return batch
        (numbers, largest), self._largest = self._largest, None
        if numbers <= _numbers_of(batch):
            return batch
        self._note(
            f"sizes of batches are random: the largest that was drawn, {numbers:,} numbers, was in the "
            "traced batches"
        )
        return largest


def _largest(function: Callable[[Any], Any], samples: Any) -> Optional[Tuple[int, Any]]:
    """The largest batch that it makes of these samples; None where it always makes the same."""
    found: Optional[Tuple[int, Any]] = None
    owner = vars(_owner(function)) if hasattr(_owner(function), "__dict__") else {}
    before, drawn, until = dict(owner), _Drawn(), spent() + _MOST_DRAWING_S
    try:
        for call in range(_MOST_CALLS):
            batch = function(copy.deepcopy(samples))
            numbers = _numbers_of(batch)
            if found is None or numbers > found[0]:
                found = numbers, batch
            if not call and not drawn.changed() and _same(before, owner):
                return None
            if spent() > until:
                break
    except Exception:  # noqa: BLE001 - the script's code, which need not bear copies and a second call
        return None
    finally:
        drawn.restore()
        owner.clear()
        owner.update(before)
    return found


class _Drawn:
    """The states of the generators that scripts draw from."""

    def __init__(self) -> None:
        self._numpy = sys.modules.get("numpy.random")
        self._before = self._states()

    def _states(self) -> List[Any]:
        numbers = [] if self._numpy is None else [self._numpy.get_state(legacy=False)]
        return [random.getstate(), torch.get_rng_state(), *numbers]

    def changed(self) -> bool:
        """Whether something was drawn since."""
        return not all(_equal(old, new) for old, new in zip(self._before, self._states()))

    def restore(self) -> None:
        """As if nothing had been drawn."""
        random.setstate(self._before[0])
        torch.set_rng_state(self._before[1])
        if self._numpy is not None:
            self._numpy.set_state(self._before[2])


def _equal(old: Any, new: Any) -> bool:
    if isinstance(old, torch.Tensor):
        return torch.equal(old, new)
    if isinstance(old, dict):
        return all(_equal(old[key], new[key]) for key in old)
    if hasattr(old, "shape"):
        return bool((old == new).all())
    return bool(old == new)


def _same(before: Dict[str, Any], after: Dict[str, Any]) -> bool:
    return before.keys() == after.keys() and all(before[name] is after[name] for name in before)


def _numbers_of(batch: Any) -> int:
    return sum(tensor.numel() for tensor in tensors_in(batch))


def _owner(function: Any) -> Any:
    """The object whose function it is, or which is called itself."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__self__", function)


def _is_scripts(function: Any) -> bool:
    """Whether it is of the user's own code."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, _Collated):
        return False
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None:  # an object that is called
        code = getattr(vars(type(function)).get("__call__"), "__code__", None)
    return code is not None and is_users(code.co_filename)
