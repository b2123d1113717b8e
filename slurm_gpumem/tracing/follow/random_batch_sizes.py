"""Batches of random sizes: a function of the script's that puts samples together may draw how large they are.

Training at several scales does so, often for some batches at a time: a few traced batches have one or two of
the sizes, and a training needs most when the largest comes by. So a function that draws or counts is called
again with the samples of one batch, for a short time, and the largest batch that came out is one of the
traced ones. It comes after the others, as the longest texts do (`longest_batch`).
"""

from __future__ import annotations

import copy
import functools
import random
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from slurm_gpumem.tracing.follow.model_state import tensors_in
from slurm_gpumem.tracing.follow.steps import spent
from slurm_gpumem.tracing.own_code import is_users
from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder

_MOST_S = 2.0
_MOST_CALLS = 256
_SECOND = 2


def install(recorder: ScriptRecorder, repeats: Callable[[], bool], note: Callable[[str], None]) -> None:
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
        if numbers <= _numbers(batch):
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
    before, drawn, until = dict(owner), _Drawn(), spent() + _MOST_S
    try:
        for call in range(_MOST_CALLS):
            batch = function(copy.deepcopy(samples))
            numbers = _numbers(batch)
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


def _numbers(batch: Any) -> int:
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
