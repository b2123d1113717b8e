"""An epoch ends when training has nothing new to show, so that what comes after it is seen.

A script that asks for batches one by one, `next(batches)`, gets them unless it knows what to do at the end of
an epoch: with a sampler that never ends it does not, and it counts its steps itself.
"""

from __future__ import annotations

import opcode
import sys
from types import FrameType
from typing import Any, Dict, Optional

_LEAST_BATCHES = 3
_LOOPS = tuple(opcode.opmap[name] for name in ("FOR_ITER", "YIELD_FROM", "SEND") if name in opcode.opmap)
"""What code is doing that takes its batches in a loop."""
_CALLERS = 4
"""Whose code may name the end: a prefetcher is asked by somebody who knows it."""


def install(tracer: Any) -> None:
    """Stand before every loader."""
    from torch.utils.data import dataloader

    kind = dataloader._BaseDataLoaderIter
    real = kind.__next__
    all_given: Dict[int, int] = {}

    def following(self: Any) -> Any:
        given, before = getattr(self, "_gpumem_given", 0), all_given.get(id(self._dataset), 0)
        # One more batch of data that was looped over before: an epoch without any is an error to some.
        least = _LEAST_BATCHES if before - given < _LEAST_BATCHES else 1
        if given >= least and tracer.fast_forward() and _may_end(sys._getframe(1)):
            raise StopIteration
        self._gpumem_given = given + 1
        all_given[id(self._dataset)] = before + 1
        return real(self)

    kind.__next__ = following  # type: ignore[method-assign]


def _may_end(asking: Optional[FrameType]) -> bool:
    """Whether the code that asks for a batch loops over them, or somebody near it knows how an epoch ends."""
    if asking is not None and asking.f_code.co_code[asking.f_lasti] in _LOOPS:
        return True
    for _ in range(_CALLERS):
        if asking is None:
            return False
        if "StopIteration" in asking.f_code.co_names:
            return True
        asking = asking.f_back
    return False
