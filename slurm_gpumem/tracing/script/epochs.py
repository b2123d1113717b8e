"""An epoch ends when training has nothing new to show, so that what comes after it is seen.

After its first batches a loader gives the last one, and before it those at whose number the loop's code does
something else. What counts batches gets their true number: `enumerate` (`rounds`), `step += 1` in the loop.

A script that asks for batches one by one, `next(batches)`, gets them unless it knows what to do at the end of
an epoch: with a sampler that never ends it does not, and it counts its steps itself.
"""

from __future__ import annotations

import opcode
import sys
import time
from types import FrameType
from typing import Any, Dict, Optional, Set

from slurm_gpumem.tracing.blame import is_users
from slurm_gpumem.tracing.script import stages
from slurm_gpumem.tracing.script.rounds import Rounds

_LEAST_BATCHES = 3
_LOOPS = tuple(opcode.opmap[name] for name in ("FOR_ITER", "YIELD_FROM", "SEND") if name in opcode.opmap)
"""What code is doing that takes its batches in a loop."""
_CALLERS = 4
"""Whose code may name the end: a prefetcher is asked by somebody who knows it."""
_MOST_S = 0.5
"""For a sampler to come to the last batch; a data set whose sampler takes longer ends its epochs early."""
_MOST_STOPS = 32
"""Of one loop, all epochs together, before the last batch."""


def install(tracer: Any) -> None:
    """Stand before every loader."""
    from torch.utils.data import dataloader

    kind = dataloader._BaseDataLoaderIter
    real = kind.__next__
    all_given: Dict[int, int] = {}
    stops: Dict[int, int] = {}
    to_the_end: Set[int] = set()
    """Data whose last batch was given."""

    def following(self: Any) -> Any:
        given, before = getattr(self, "_gpumem_given", 0), all_given.get(id(self._dataset), 0)
        number = getattr(self, "_gpumem_number", 0)
        tracer.rounds.jumped = None
        # One more batch of data that was looped over before: an epoch without any is an error to some.
        least = _LEAST_BATCHES if before - given < _LEAST_BATCHES else 1
        asking = _asking(sys._getframe(1))
        if given >= least and tracer.fast_forward() and _may_end(asking):
            left = _batches(self) - number
            asking = _loop_of_script(asking)
            if asking is None and id(self._dataset) in to_the_end:
                raise StopIteration  # nobody counts
            later = left if asking is None or left <= 1 else _next_of_interest(asking, left, stops)
            if later < 1 or not _leave_out(self, later - 1):
                raise StopIteration
            if later == left:
                to_the_end.add(id(self._dataset))
            tracer.rounds.jumped = (number, later - 1)
            number += later - 1
        self._gpumem_given, self._gpumem_number = given + 1, number + 1
        all_given[id(self._dataset)] = before + 1
        return real(self)

    kind.__next__ = following  # type: ignore[method-assign]


def _asking(frame: Optional[FrameType]) -> Optional[FrameType]:
    """Who asks for a batch, behind our own `enumerate`."""
    while frame is not None and frame.f_code is Rounds._numbered.__code__:
        frame = frame.f_back
    return frame


def _batches(loader: Any) -> int:
    """In an epoch; 0 where nobody knows."""
    try:
        return len(loader._index_sampler)
    except (TypeError, NotImplementedError, AttributeError):
        return 0


def _loop_of_script(asking: Optional[FrameType]) -> Optional[FrameType]:
    """The script's own code whose loop asks for a batch; None where a library's does."""
    while asking is not None and not is_users(asking.f_code.co_filename):
        asking = asking.f_back
    return None if asking is None or stages.loop_over(asking) is None else asking


def _next_of_interest(asking: FrameType, left: int, stops: Dict[int, int]) -> int:
    """How many batches later the next one is that may differ, or the last; what the script counts by hand
    is set to what it is then."""
    loop = stages.loop_over(asking)
    if loop is None:
        return left
    counted = stages.counters(loop, asking)
    found = []
    if stops.get(id(loop.node), 0) < _MOST_STOPS:
        found = stages.changes(loop, asking, {**counted, **stages.numbered(loop, asking)}, left)
    later = next(iter(found), left)
    if later < left:
        stops[id(loop.node)] = stops.get(id(loop.node), 0) + 1
    stages.advance(asking, counted, later - 1)
    return later


def _leave_out(loader: Any, batches: int) -> bool:
    """Pass over batches; whether its sampler did that in time."""
    if getattr(loader._dataset, "_gpumem_slow", False):
        return False
    until = time.monotonic() + _MOST_S
    for _ in range(batches):
        next(loader._sampler_iter)
        if time.monotonic() > until:
            loader._dataset._gpumem_slow = True
            return False
    return True


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
