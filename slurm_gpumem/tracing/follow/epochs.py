"""An epoch ends when training has nothing new to show, so that what comes after it is seen.

After its first batches a loader gives the last one, and before it those at whose number the loop's code does
something else. An evaluation gets all batches where they take little of the time that is left
(`evaluation_time`): what it collects is then as long as its labels. What counts batches gets their true
number: `enumerate` (`loop_skipper`), `step += 1` in the loop (`counters`), a library's trainer (`trainers`).

A script that asks for batches one by one, `next(batches)`, also of a generator, gets them unless it knows
what to do at the end of an epoch: with a sampler that never ends it does not, and it counts its steps itself.
"""

from __future__ import annotations

import inspect
import opcode
import sys
import time
from collections import deque
from types import FrameType
from typing import Any, Deque, Dict, Optional, Set

from slurm_gpumem.tracing.follow import counters, loops, stages, trainers
from slurm_gpumem.tracing.follow.fast_forward import SEEN_EVALUATIONS
from slurm_gpumem.tracing.follow.loop_skipper import Rounds
from slurm_gpumem.tracing.follow.steps import Steps, spent
from slurm_gpumem.tracing.own_code import is_users

# How long batches of an evaluation take when models answer as before, and whether there is time for all.
#
# In training nobody needs them: what it counts is set (`counters`).

_SHARE = 1 / 8
"""Of the time that is left, for the rest of an evaluation ..."""
_SHARE_AGAIN = 1 / 2
"""... and for that of a loop which was once run whole: what it counts on then is there each time."""
_LEAST_TIMES = 2
"""Batches whose quickest shows how long one takes."""
_TRIED = SEEN_EVALUATIONS + 2
"""Batches after which models of an evaluation surely answer as before."""


class Pace:
    """Of the loops over one data set at one place of the code."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._seconds: Deque[float] = deque(maxlen=_LEAST_TIMES + 1)
        self._asked_at = 0.0
        self._taken = 0
        """Steps that had been taken when the loop began."""
        self._until: Optional[float] = None
        """When the time for the rest of this one is over."""
        self._whole = False
        """Whether an evaluation was given whole."""

    def asked(self, given: int, known: bool) -> None:
        """A batch is asked for after some that were given; `known`: training has nothing new to show."""
        now = spent()
        if not given:
            self._taken, self._until = self._steps.taken, None
        elif known:
            self._seconds.append(now - self._asked_at)
        self._asked_at = now

    def allows(self, given: int, left: int) -> bool:
        """Whether there is time for all the batches that are left; they could be left out."""
        if left <= 1:
            return left == 1
        if self._steps.taken != self._taken:
            return False
        now = self._asked_at
        if self._until is None:
            share = self._steps.time_left() * (_SHARE_AGAIN if self._whole else _SHARE)
            self._until = now + share
        rest = self._until - now
        if len(self._seconds) < _LEAST_TIMES:
            return rest > 0
        each = min(self._seconds)
        enough = left * each <= rest
        self._whole = self._whole or enough
        return enough or (given < _TRIED and _LEAST_TIMES * each <= rest)


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
    known: Dict[int, _Counting] = {}
    """By their loops."""
    paces: Dict[Any, Pace] = {}
    to_the_end: Set[int] = set()
    """Data whose last batch was given."""

    not_followed: Set[str] = set()

    def unknown(library: str) -> None:
        if library not in not_followed:
            not_followed.add(library)
            tracer.note(
                f"this version of {library} counts its steps in another way than those that are known: "
                "what it does at certain steps, such as evaluations and checkpoints, may not have been seen"
            )

    def following(self: Any) -> Any:
        asking = _asking(sys._getframe(1))
        looping = _loop_of_script(asking)
        try:
            pass_over(self, asking, looping)
            with tracer.recorder.loads():
                return real(self)
        except StopIteration:
            if looping is not None:
                tracer.rounds.epoch_over(looping)
            raise

    def pass_over(self: Any, asking: Optional[FrameType], looping: Optional[FrameType]) -> None:
        given, before = getattr(self, "_gpumem_given", 0), all_given.get(id(self._dataset), 0)
        number = getattr(self, "_gpumem_number", 0)
        tracer.rounds.jumped, left_out = None, 0
        if not given:
            self._gpumem_written = tracer.unwritten.count
        # One more batch of data that was looped over before: an epoch without any is an error to some.
        least = _LEAST_BATCHES if before - given < _LEAST_BATCHES else 1
        loop = None if looping is None else loops.loop_over(looping)
        counting = None if loop is None else known.setdefault(id(loop.node), _Counting(loop))
        if counting is not None and loop is not None and looping is not None:
            tracer.rounds.fed.add(loop.node)
            counting.measured.look(loop, looping, again=not given or self._gpumem_left_out > 0)
        in_all = batches_of(self)
        left = in_all - number
        place = (id(self._dataset), asking.f_code if asking is not None else None)
        pace = paces.setdefault(place, Pace(tracer.steps))
        pace.asked(given, tracer.fast_forward())
        if given >= least and tracer.fast_forward() and _may_end(asking) and not pace.allows(given, left):
            if left > 1 or not in_all:
                tracer.unwritten.left_out(self._gpumem_written)
            trainer = trainers.asking(asking, unknown)
            if trainer is not None and not in_all and not trainer.knows_its_end:
                trainer = None  # nobody knows how long an epoch is
            left_out = max(0, left - 1)
            if trainer is not None and (left > 1 or not in_all):
                left_out = trainer.left_out(left if in_all else 0)
            elif trainer is None and counting is None and id(self._dataset) in to_the_end:
                raise StopIteration  # nobody counts
            elif trainer is None and counting is not None and looping is not None and left > 1:
                left_out = counting.left_out(looping, left)
            if (left < 1 and trainer is None) or not _leave_out(self, left_out):
                raise StopIteration
            if left_out == left - 1:
                to_the_end.add(id(self._dataset))
            tracer.rounds.jumped = (number, left_out)
            number += left_out
        self._gpumem_given, self._gpumem_number, self._gpumem_left_out = given + 1, number + 1, left_out
        all_given[id(self._dataset)] = before + 1

    kind.__next__ = following  # type: ignore[method-assign]


def _asking(frame: Optional[FrameType]) -> Optional[FrameType]:
    """Who asks for a batch, behind our own `enumerate`."""
    while frame is not None and frame.f_code is Rounds._numbered.__code__:
        frame = frame.f_back
    return frame


def batches_of(loader: Any) -> int:
    """In an epoch; 0 where nobody knows."""
    try:
        return len(loader._index_sampler)
    except (TypeError, NotImplementedError, AttributeError):
        return 0


def _loop_of_script(asking: Optional[FrameType]) -> Optional[FrameType]:
    """The script's own code whose loop asks for a batch; None where a library's does."""
    while asking is not None and not is_users(asking.f_code.co_filename):
        asking = asking.f_back
    return None if asking is None or loops.loop_over(asking) is None else asking


class _Counting:
    """A loop of the script's over batches, and what it counts."""

    def __init__(self, loop: loops.Loop) -> None:
        self._loop = loop
        self.measured = counters.Measured()
        self._stops = 0

    def left_out(self, asking: FrameType, left: int) -> int:
        """How many batches before the next one that may differ, or the last; what the script counts by hand
        is set to what it is then."""
        if self.measured.waits(self._loop, asking):
            return 0
        counted = self.measured.counted(self._loop, asking)
        batches = max(1, self.measured.batches)
        found = []
        if self._stops < _MOST_STOPS:
            numbers = {**counted, **self.measured.in_round(counters.numbered(self._loop, asking))}
            found = stages.changes(self._loop, asking, numbers, left // batches)
        last = (left - 1) // batches + 1
        rounds = min(next(iter(found), last), last)
        self._stops += 1 < rounds < last
        counters.advance(asking, counted, rounds - 1)
        return (rounds - 1) * batches


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
    """Whether the code that asks for a batch loops over them, or somebody near it knows how an epoch ends.

    What stands between as a generator hands on that there are no more: who asks it has to know.
    """
    while asking is not None and asking.f_code.co_flags & inspect.CO_GENERATOR:
        asking = asking.f_back
    if asking is not None and asking.f_code.co_code[asking.f_lasti] in _LOOPS:
        return True
    for _ in range(_CALLERS):
        if asking is None:
            return False
        if "StopIteration" in asking.f_code.co_names:
            return True
        asking = asking.f_back
    return False
