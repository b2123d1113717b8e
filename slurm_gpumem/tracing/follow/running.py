"""A training loop at work: how long its rounds take, what they count and keep, and which one comes next."""

from __future__ import annotations

import ast
from collections import deque
from types import FrameType
from typing import Deque, Dict, List, Optional, Protocol, Tuple

from slurm_gpumem.tracing.follow import counters, loops, stages
from slurm_gpumem.tracing.follow.steps import Steps, spent
from slurm_gpumem.tracing.own_code import is_users
from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder

FEW = 3
"""Rounds with steps that are run before any is left out; one where the same loop has run before."""
_LEAST_TIMES = 2
"""Rounds whose times show how long one takes: the quickest of the last; the first may still run whole."""
_SHARE = 1 / 3
"""Of the time that is left, for a loop that no other is around: something may come after it."""
ENDLESS = 1 << 40
"""Rounds of a loop by `while`, before its end is known."""
_JUMP, _KEEPING = 4, 5
"""Rounds left out at once from which on it shows whether something is kept, and rounds that show it."""


class LoopsAtWork(Protocol):
    """Who has the loops at work, and is told what was left out of one."""

    running: List[Running]
    """Outer ones first."""
    left_out: int
    collects: bool

    def note_changes_left_out(self, loop: loops.Loop) -> None:
        """More rounds do something else than there is time for."""


class Running:
    """A loop at work."""

    def __init__(
        self,
        rounds: LoopsAtWork,
        recorder: ScriptRecorder,
        steps: Steps,
        loop: loops.Loop,
        total: int,
        *,
        known: bool,
    ) -> None:
        self._rounds, self._recorder, self._steps = rounds, recorder, steps
        self.loop = loop
        self.total = total
        """Of its rounds; 0: not known yet."""
        self.endless = False
        """Whether nothing in its code says when it ends: it is run as it is."""
        self.at = self.taken = 0
        """The round that it is in, and steps that had been taken when a loop by `while` was last asked."""
        self.trained = 0
        """Rounds with steps that were run."""
        self._few = 1 if known else FEW
        self._ended: Optional[float] = None
        """When the last round was over, if from there on known steps are skipped: the others take longer."""
        self._seconds: Deque[float] = deque(maxlen=FEW)
        self._over = spent()
        """When the last round was over, however it was run."""
        self._live: Deque[Tuple[int, int]] = deque(maxlen=_KEEPING)
        """After each of the last rounds: bytes, and how many rounds it is from the one before."""
        self._counts: Deque[Dict[str, int]] = deque(maxlen=FEW)
        self._growth: Optional[Dict[str, int]] = None
        """What the script counts by hand, and by how much it grows in a round."""
        self._jump = 1
        self._until: Optional[float] = None
        self._changes: Optional[List[int]] = None
        self._keeps = False

    @property
    def called(self) -> str:
        """What its rounds are called."""
        name = next(iter(sorted(self.loop.variables)), "")
        return "epochs" if "epoch" in name.lower() or name in ("ep", "e") else "rounds"

    def following(self, frame: FrameType, named: Dict[str, counters.Counted]) -> int:
        """After a round with steps: how many rounds later the next one is. `named`: its variable."""
        frame = _frame_of(self.loop, frame) or frame
        self.trained += 1
        now = spent()
        if self._ended is not None:
            self._seconds.append(now - self._ended)
        self._ended = now if self._steps.fast_forward else None
        took, self._over = now - self._over, now
        self._live.append((self._recorder.live_bytes, self._jump))
        self._look_for_what_is_kept()
        if self._growth is None:
            self._counts.append(counters.counts(self.loop.path, frame))
        self._jump = 1
        left = self.total - self.at - 1
        if left <= 1 or not self._steps.fast_forward or self._keeps:
            return 1
        if self.trained < self._few or len(self._seconds) < _LEAST_TIMES:
            # Rounds that show how long one takes, and then the last: not if there is no time for them.
            if took * (_LEAST_TIMES + 1) <= self._steps.time_left():
                return 1
        else:
            took = min(self._seconds)
        rest, each = self.time_left(frame), took
        if left * each <= rest:
            return 1
        counted = self._counted(frame)
        if self._changes is None:
            found = stages.changes(self.loop, frame, {**counted, **named}, left)
            self._changes = [self.at + later for later in found]
        evenly = max(1, int(left * each / rest)) if rest > 0 else left
        coming = [at for at in self._changes if at > self.at] or [self.total]
        passed = (len(coming) - 1) // max(1, int(self._steps.time_left() / each))
        if passed:  # more of them than there is time for: some, evenly
            self._rounds.note_changes_left_out(self.loop)
        change = coming[passed]
        self._jump = min(evenly, change - self.at, left)
        if self._jump > 1:
            self._rounds.left_out += self._jump - 1
            counters.advance(frame, counted, self._jump - 1)
        return self._jump

    def _counted(self, frame: FrameType) -> Dict[str, counters.Counted]:
        """What the script counts by hand, here or in what the loop calls."""
        if self._growth is None and len(self._counts) == FEW:
            self._growth = counters.steady(self._counts)
        if self._growth is None:
            return counters.counters(self.loop, frame)
        here = counters.counts(self.loop.path, frame)
        return {name: counters.Counted(here[name], by) for name, by in self._growth.items() if name in here}

    def end(self, frame: FrameType) -> int:
        """The last number of rounds with which its code compares what it counts; 0 where there is none."""
        by_while = isinstance(self.loop.node, ast.While)
        loop = self.loop if by_while else loops.bounds(self.loop)
        found = stages.changes(loop, frame, self._counted(frame), ENDLESS)
        return self.at + found[-1] if found else 0

    def time_left(self, frame: FrameType) -> float:
        """Seconds for the rest of the loop: its part of the outer one's, or of all that is left."""
        now = spent()
        if self._until is None:
            self._until = now + self._share(frame)
        return self._until - now

    def _share(self, frame: FrameType) -> float:
        parts = 1
        outer: Optional[FrameType] = frame
        running = self._rounds.running
        around = running[: running.index(self)] if self in running else running
        known = {self.loop.node, *(one.loop.node for one in around)}
        while outer is not None:
            if is_users(outer.f_code.co_filename):
                for loop in loops.loops_around(outer):
                    parts *= 1 if loop.node in known else loops.rounds_of(loop, outer)
            outer = outer.f_back
        if not around:
            left = self._steps.time_left()
            return left * (_SHARE if parts == 1 else 1 / (parts + 1))
        frame_around = _frame_of(around[-1].loop, frame) or frame
        rest = around[-1].time_left(frame_around)
        return rest / (parts * (around[-1].total - around[-1].at))

    def _look_for_what_is_kept(self) -> None:
        """Memory that grows by as much over rounds that were left out as over one: each keeps something."""
        if len(self._live) < _KEEPING:
            return
        live, jumps = zip(*self._live)
        grown = [after - before for before, after in zip(live, live[1:])]
        if min(jumps[1:]) == 1 and max(jumps[1:]) >= _JUMP and 0 < max(grown) <= 2 * min(grown):
            self._keeps = self._rounds.collects = True


def _frame_of(loop: loops.Loop, frame: Optional[FrameType]) -> Optional[FrameType]:
    """The frame that runs a loop: tqdm and others may stand between."""
    while frame is not None:
        if frame.f_code.co_filename == loop.path and loop.holds(frame.f_lineno):
            return frame
        frame = frame.f_back
    return None
