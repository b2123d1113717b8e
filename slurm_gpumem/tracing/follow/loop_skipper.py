"""Long training loops: every round while time allows, else those that may differ, each with its true number.

`range` in the script's own code (`own_code`), and of tqdm's `trange`, gives ranges whose rounds are
watched. Where optimizers step in them, training repeats itself, and the loop would not come to its end in
its share of the time, rounds are left out: not those at which the loop's code does something else
(`counters.changes`), some that lie evenly between, and the last. What decides is what a loop does, not its
code: loops of data sets and samplers, and those inside of models, have no steps and run as they are.
Libraries keep Python's own names, and real ranges can be pickled.
"""

from __future__ import annotations

import ast
import builtins
import copyreg
import os
import pkgutil
import sys
from collections import deque
from collections.abc import Sequence
from types import FrameType
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Set, Tuple

from slurm_gpumem.tracing import own_code
from slurm_gpumem.tracing.follow import counters, loops
from slurm_gpumem.tracing.follow.enough_steps import Steps, spent
from slurm_gpumem.tracing.follow.written_files import Unwritten
from slurm_gpumem.tracing.own_code import is_users
from slurm_gpumem.tracing.script import hints
from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder

_PLAIN = (list, tuple, dict, set, str, range)
_FEW = 3
"""Rounds with steps that are run before any is left out; one where the same loop has run before."""
_LEAST_TIMES = 2
"""Rounds whose times show how long one takes: the quickest of the last; the first may still run whole."""
_SHARE = 1 / 3
"""Of the time that is left, for a loop that no other is around: something may come after it."""
_ENDLESS = 1 << 40
"""Rounds of a loop by `while`, before its end is known."""
_JUMP, _KEEPING = 4, 5
"""Rounds left out at once from which on it shows whether something is kept, and rounds that show it."""


class Running:
    """A loop at work: how long its rounds take, what they count and keep, and which one comes next."""

    def __init__(
        self,
        rounds: Rounds,
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
        self._few = 1 if known else _FEW
        self._ended: Optional[float] = None
        """When the last round was over, if from there on known steps are skipped: the others take longer."""
        self._seconds: Deque[float] = deque(maxlen=_FEW)
        self._over = spent()
        """When the last round was over, however it was run."""
        self._live: Deque[Tuple[int, int]] = deque(maxlen=_KEEPING)
        """After each of the last rounds: bytes, and how many rounds it is from the one before."""
        self._counts: Deque[Dict[str, int]] = deque(maxlen=_FEW)
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
            found = counters.changes(self.loop, frame, {**counted, **named}, left)
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
        if self._growth is None and len(self._counts) == _FEW:
            self._growth = counters.steady(self._counts)
        if self._growth is None:
            return counters.counters(self.loop, frame)
        here = counters.counts(self.loop.path, frame)
        return {name: counters.Counted(here[name], by) for name, by in self._growth.items() if name in here}

    def end(self, frame: FrameType) -> int:
        """The last number of rounds with which its code compares what it counts; 0 where there is none."""
        by_while = isinstance(self.loop.node, ast.While)
        loop = self.loop if by_while else loops.bounds(self.loop)
        found = counters.changes(loop, frame, self._counted(frame), _ENDLESS)
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


def install(rounds: Rounds) -> None:
    """Give the script's own code its `range` and `enumerate`."""
    own_code.give(range=rounds.range, enumerate=kind_of_enumerate(rounds))


class Rounds:
    """The training loops at work, and numbers of batches that were left out."""

    def __init__(
        self, recorder: ScriptRecorder, steps: Steps, unwritten: Unwritten, note: Callable[[str], None]
    ) -> None:
        self._recorder, self._steps, self._unwritten, self._note = recorder, steps, unwritten, note
        self.running: List[Running] = []
        """Outer ones first."""
        self._before: Dict[Tuple[str, int], bool] = {}
        """Loops that have run to their end."""
        self._shortened: Set[Tuple[str, int]] = set()
        self._waiting: Dict[Tuple[int, int], Running] = {}
        """Loops by `while`, by their frame and line."""
        self.jumped: Optional[Tuple[int, int]] = None
        """The true number of the batch that a loader gave last, and how many were left out before it."""
        self.fed: Set[ast.AST] = set()
        """Loops over batches of loaders, which leave out batches themselves."""
        self.left_out = 0
        self.early_ends: List[str] = []
        """Notes on loops that ended themselves."""
        self.collects = False
        """Whether rounds were left out of a loop that keeps something on the GPU in each."""
        self.range = _kind_of_range(self)

    # -- Numbers of batches ------------------------------------------------------------------------

    def enumerate(self, iterable: Any, start: int = 0) -> Any:
        """`enumerate`, with the true numbers of batches where some are left out."""
        plain = isinstance(iterable, (*_PLAIN, Watched))
        return builtins.enumerate(iterable, start) if plain else self._numbered(iterable, start)

    def _numbered(self, iterable: Any, start: int) -> Iterator[Tuple[int, Any]]:
        number, items = start, iter(iterable)
        while True:
            # What a loader left out for this item: models and data sets count their own things meanwhile.
            before, self.jumped = self.jumped, None
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                jumped, self.jumped = self.jumped, before
            if jumped is not None and abs(jumped[0] - (number - start)) <= 1:  # or one ahead
                number += jumped[1]
            yield number, item
            number += 1

    # -- Loops by range ----------------------------------------------------------------------------

    def watched(self, values: range, frame: Optional[FrameType]) -> Any:
        """The range, watched if a loop of the script may be over it."""
        if frame is None or len(values) <= 1:
            return values
        if frame.f_globals.get("__name__") in own_code.OF_TQDM:
            return Watched(values, self)
        path = frame.f_code.co_filename
        known = is_users(path) and frame.f_lineno in loops.lines_of_ranges(path)
        return Watched(values, self) if known else values

    def run(self, values: range) -> Iterator[int]:
        """The values of a loop's rounds."""
        asking: Optional[FrameType] = sys._getframe(1)
        while asking is not None and not is_users(asking.f_code.co_filename):
            asking = asking.f_back
        loop = None if asking is None else loops.loop_over(asking)
        del asking  # it has the script's tensors
        if loop is None:
            yield from values
            return
        steps = self._steps
        place, written = (loop.path, loop.node.lineno), self._unwritten.count
        running = self._begin(loop, len(values), known=self._before.get(place, False))
        self.running.append(running)
        try:
            while running.at < running.total:
                before = steps.taken
                yield values[running.at]
                if steps.taken == before:  # no training: it is to cost nothing
                    running.at += 1
                    continue
                value = counters.Counted(values[running.at], values.step)
                # No frame in a variable of ours: it would keep the script's tensors until the next round.
                onward = running.following(sys._getframe(1), dict.fromkeys(loop.variables, value))
                if onward > 1:
                    self._unwritten.left_out(written)
                running.at += onward
        finally:
            self.running.remove(running)
            if place not in self._before:
                self._note_an_early_end(running)
            self._before[place] = True

    def _begin(self, loop: loops.Loop, total: int, *, known: bool) -> Running:
        return Running(self, self._recorder, self._steps, loop, total, known=known)

    def note_changes_left_out(self, loop: loops.Loop) -> None:
        """Rounds at which a loop's code does something else, more than there is time for; said once."""
        where = (loop.path, loop.node.lineno)
        if where not in self._shortened:
            self._shortened.add(where)
            self._note(
                f"the loop at {os.path.basename(loop.path)}, line {loop.node.lineno}, does something else in "
                f"more of its rounds than there was time for: only some of these were run. {hints.LONGER}"
            )

    def _note_an_early_end(self, running: Running) -> None:
        """Epochs that do not all come: a trace has no losses, so early stopping may come too soon."""
        if running.trained and running.called == "epochs" and running.at + 1 < running.total:
            where = f"{os.path.basename(running.loop.path)}, line {running.loop.node.lineno}"
            self.early_ends.append(
                f"the loop at {where}, ended itself after {running.at + 1:,} of {running.total:,} epochs. "
                "If a loss decides that (early stopping), the job may train longer: what comes "
                "later was not seen"
            )

    # -- Loops by while ----------------------------------------------------------------------------

    def stepped(self) -> None:
        """An optimizer has stepped; directly in a loop that a count ends, that is a round of it."""
        frame: Optional[FrameType] = sys._getframe(1)
        around: List[loops.Loop] = []
        while frame is not None and not around:
            around = loops.loops_around(frame) if is_users(frame.f_code.co_filename) else []
            frame = frame if around else frame.f_back
        outer = next((one for one in around if loops.is_open(one)), None)
        if frame is None or outer is None or around[-1].node in self.fed:
            return
        if not any(one.loop.node is around[-1].node for one in self.running):
            # What ends the outer one may be counted in the inner one: `while step < total: for x in batches`.
            self._round_by_while(frame, around[-1]._replace(expressions=outer.expressions))

    def epoch_over(self, frame: FrameType) -> None:
        """A loader has no more batches for a loop; next in a loop by `while`, that is a round of it."""
        around = loops.loops_around(frame)[:-1]
        outer: Optional[FrameType] = frame
        while not around and outer is not None:
            outer = outer.f_back
            users = outer is not None and is_users(outer.f_code.co_filename)
            around = loops.loops_around(outer) if users and outer is not None else []
        if outer is not None and isinstance(around[-1].node, ast.While):
            self._round_by_while(outer, around[-1])

    def _round_by_while(self, frame: FrameType, loop: loops.Loop) -> None:
        key = (id(frame), loop.node.lineno)
        running = self._waiting.get(key)
        if running is None:
            running = self._waiting[key] = self._begin(loop, 0, known=False)
            running.total = running.end(frame)
        elif running.taken != self._steps.taken and not running.at >= running.total > 0:
            running.at += running.following(frame, {})
            # What only inner loops count is known after some rounds.
            if not running.total and running.trained == _FEW:
                end = running.end(frame)
                running.total, running.endless = end or running.at, not end
        running.taken = self._steps.taken

    # -- How far it is -----------------------------------------------------------------------------

    def seen(self) -> str:
        """Of the outermost training loop that is at work: "2 of 30 epochs"; "" where none is."""
        for one in (*self.running, *self._waiting.values()):
            if one.trained and one.total > 1 and not one.endless:
                if one.at + 1 >= one.total:
                    return f"{one.total - 1:,} of {one.total:,} {one.called} and a part of the last"
                return f"{one.at + 1:,} of {one.total:,} {one.called}"
        return ""


class Watched:
    """A range whose rounds are those of a loop."""

    def __init__(self, values: range, rounds: Rounds) -> None:
        self._values, self._rounds = values, rounds

    def __iter__(self) -> Iterator[int]:
        return self._rounds.run(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, at: Any) -> Any:
        return self._values[at]

    def __contains__(self, value: Any) -> bool:
        return value in self._values

    def __reversed__(self) -> Iterator[int]:
        return reversed(self._values)

    def __reduce__(self) -> Any:
        return self._values.__reduce__()  # saved and copied as Python's own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._values, name)


Sequence.register(Watched)


class _Kind(type):
    """Of our `range` and `enumerate`: classes, as Python's own are."""

    call: Callable[..., Any]
    kinds: Tuple[type, ...]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.call(*args, **kwargs)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.kinds)


# A script may save them among its settings: what is saved is Python's own.
copyreg.pickle(_Kind, lambda kind: (pkgutil.resolve_name, (f"builtins:{kind.__name__}",)))


def _kind_of_range(rounds: Rounds) -> Any:
    def call(*args: Any) -> Any:
        return rounds.watched(builtins.range(*args), sys._getframe(2))

    return _Kind("range", (), {"call": staticmethod(call), "kinds": (builtins.range, Watched)})


def kind_of_enumerate(rounds: Rounds) -> Any:
    """The `enumerate` of a script's modules."""
    return _Kind("enumerate", (), {"call": rounds.enumerate, "kinds": (builtins.enumerate,)})
