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
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Callable, Deque, Dict, Optional, Set, Tuple

from torch.utils.data import dataloader

from slurm_gpumem.tracing.follow import counters, loops, trainers
from slurm_gpumem.tracing.follow.enough_steps import Steps, spent
from slurm_gpumem.tracing.follow.fast_forward import SEEN_EVALUATIONS
from slurm_gpumem.tracing.follow.loop_skipper import Rounds
from slurm_gpumem.tracing.follow.written_files import Unwritten
from slurm_gpumem.tracing.own_code import is_users
from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder

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
        if rest <= 0 or len(self._seconds) < _LEAST_TIMES:
            return rest > 0
        each = min(self._seconds)  # on a busy machine 0 or less: what it waited for a CPU does not count
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


@dataclass
class _Given:
    """What a script got of one pass over a loader's batches."""

    batches: int = 0
    number: int = 0
    """With those that were left out."""
    left_out: int = 0
    """Before the last one."""
    written: int = 0
    """Files that the script had written when the pass began."""


class _Epoch:
    """One pass over a loader's batches, of which PyTorch's iterator keeps most to itself."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        self.given: _Given = vars(iterator).setdefault("_gpumem_given", _Given())

    @property
    def data(self) -> int:
        """Which data set it goes over."""
        return id(self._iterator._dataset)

    @property
    def in_all(self) -> int:
        """Its batches; 0 where nobody knows."""
        return batches_of(self._iterator)

    @property
    def left(self) -> int:
        """Batches that are still to come; none or less where nobody knows."""
        return self.in_all - self.given.number

    def leave_out(self, batches: int) -> bool:
        """Pass over batches; whether its sampler did that in time."""
        if getattr(self._iterator._dataset, "_gpumem_slow", False):
            return False
        until = time.monotonic() + _MOST_S
        for _ in range(batches):
            next(self._iterator._sampler_iter)
            if time.monotonic() > until:
                self._iterator._dataset._gpumem_slow = True
                return False
        return True

    def goes_on(self, left_out: int) -> None:
        """The next batch is given, after some that were left out."""
        self.given.batches += 1
        self.given.number += left_out + 1
        self.given.left_out = left_out


class Epochs:
    """Stands before every loader."""

    def __init__(
        self,
        recorder: ScriptRecorder,
        steps: Steps,
        rounds: Rounds,
        unwritten: Unwritten,
        repeats: Callable[[], bool],
        note: Callable[[str], None],
    ) -> None:
        self._recorder, self._steps, self._rounds = recorder, steps, rounds
        self._unwritten, self._repeats, self._note = unwritten, repeats, note
        self._given: Dict[int, int] = {}
        """Batches of each data set, in all epochs."""
        self._counting: Dict[int, _Counting] = {}
        """By their loops."""
        self._paces: Dict[Tuple[int, Optional[CodeType]], Pace] = {}
        """By data set and code."""
        self._to_the_end: Set[int] = set()
        """Data whose last batch was given."""
        self._not_followed: Set[str] = set()
        """Libraries whose trainers count in a way that is not known."""

    def install(self) -> None:
        """For the rest of the process's life."""
        kind = dataloader._BaseDataLoaderIter
        real = kind.__next__

        def following(iterator: Any) -> Any:
            return self._next(iterator, real, _asking(sys._getframe(1)))

        kind.__next__ = following  # type: ignore[method-assign,assignment]

    def _next(self, iterator: Any, real: Callable[[Any], Any], asking: Optional[FrameType]) -> Any:
        looping = _loop_of_script(asking)
        try:
            self._before(_Epoch(iterator), asking, looping)
            with self._recorder.loads():
                return real(iterator)
        except StopIteration:
            if looping is not None:
                self._rounds.epoch_over(looping)
            raise

    def _before(self, epoch: _Epoch, asking: Optional[FrameType], looping: Optional[FrameType]) -> None:
        """Leave out batches before the next one, or end the epoch, where it has nothing new to show."""
        self._rounds.jumped = None
        given, before, left_out = epoch.given, self._given.get(epoch.data, 0), 0
        if not given.batches:
            given.written = self._unwritten.count
        loop = self._loop_of(epoch, looping)
        repeats = self._repeats()
        pace = self._pace_of(epoch, asking)
        pace.asked(given.batches, repeats)
        # One more batch of data that was looped over before: an epoch without any is an error to some.
        least = _LEAST_BATCHES if before - given.batches < _LEAST_BATCHES else 1
        may_end = repeats and given.batches >= least and _may_end(asking)
        if may_end and not pace.allows(given.batches, epoch.left):
            left_out = self._pass_over(epoch, asking, looping, loop)
            self._rounds.jumped = (given.number, left_out)
        epoch.goes_on(left_out)
        self._given[epoch.data] = before + 1

    def _loop_of(self, epoch: _Epoch, looping: Optional[FrameType]) -> Optional[_Counting]:
        """The script's own loop that gets the batch, and has counted what it did with those before."""
        loop = None if looping is None else loops.loop_over(looping)
        if loop is None or looping is None:
            return None
        self._rounds.fed.add(loop.node)
        found = self._counting.setdefault(id(loop.node), _Counting(loop))
        found.measured.look(loop, looping, again=not epoch.given.batches or epoch.given.left_out > 0)
        return found

    def _pace_of(self, epoch: _Epoch, asking: Optional[FrameType]) -> Pace:
        place = (epoch.data, asking.f_code if asking is not None else None)
        return self._paces.setdefault(place, Pace(self._steps))

    def _pass_over(
        self,
        epoch: _Epoch,
        asking: Optional[FrameType],
        looping: Optional[FrameType],
        loop: Optional[_Counting],
    ) -> int:
        """Leave out batches, and say how many; StopIteration where the epoch ends."""
        left, in_all = epoch.left, epoch.in_all
        several = left > 1 or not in_all
        if several:
            self._unwritten.left_out(epoch.given.written)
        trainer = trainers.asking(asking, self._unknown)
        if trainer is not None and (in_all or trainer.knows_its_end):
            left_out = trainer.left_out(left if in_all else 0) if several else 0
        elif left < 1:
            raise StopIteration  # nobody knows how long an epoch is
        elif loop is None or looping is None:
            if epoch.data in self._to_the_end:
                raise StopIteration  # nobody counts
            left_out = left - 1
        else:
            left_out = loop.left_out(looping, left) if left > 1 else 0
        if not epoch.leave_out(left_out):
            raise StopIteration
        if left_out == left - 1:
            self._to_the_end.add(epoch.data)
        return left_out

    def _unknown(self, library: str) -> None:
        if library not in self._not_followed:
            self._not_followed.add(library)
            self._note(
                f"this version of {library} counts its steps in another way than those that are known: "
                "what it does at certain steps, such as evaluations and checkpoints, may not have been seen"
            )


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
            found = counters.changes(self._loop, asking, numbers, left // batches)
        last = (left - 1) // batches + 1
        rounds = min(next(iter(found), last), last)
        self._stops += 1 < rounds < last
        counters.advance(asking, counted, rounds - 1)
        return (rounds - 1) * batches


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
