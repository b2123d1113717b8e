"""Calls of a model whose inputs grow by the same each time, as in a loop that writes a text token by token:
only some of them are run.

One is run whenever its inputs are a quarter longer than those of the last one that was. Between them the
answers have the shapes that follow from their growth. None is left out that might set a new peak, nor where
calls leave something behind: a loop that collects what it is answered, or its graph, is run as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

_STEADY = 3
"""Calls that grew alike before one is left out."""
_LONGER = 1.25
_LEFT_BEHIND = 0.1
"""Of what a call needs, before it is taken for something that stays."""

Dims = Tuple[int, ...]
Shapes = Tuple[Optional[Dims], ...]
"""Of the values of a call or of an answer; None for what is no tensor."""


@dataclass(frozen=True)
class Call:
    """A call before it is run."""

    family: Any
    """The same for calls that differ in the sizes of their inputs only."""
    shapes: Shapes
    phase: int
    live_bytes: int


@dataclass
class _Series:
    last: Call
    """The last call, run or not."""
    step: Dims = ()
    steady: int = 0
    """How many calls have grown by this step."""
    ran: Optional[Call] = None
    """The last call that was run ..."""
    answer: Shapes = ()
    answer_step: Optional[Dims] = None
    """... and by what its answer grows with each call; None: not known."""
    nbytes: int = 0
    """All that it has allocated."""
    collects: bool = False


class GrowingCalls:
    """Remembers calls, by their families."""

    def __init__(self) -> None:
        self._series: Dict[Any, _Series] = {}

    def grows(self, call: Call) -> bool:
        """Note a call; whether the one before it had smaller inputs, and no step of training was between."""
        series = self._series.setdefault(call.family, _Series(call))
        step = _difference(series.last, call)
        series.steady = series.steady + 1 if step and step == series.step else 0
        series.step, series.last = step, call
        return bool(step)

    def answer(self, call: Call, peak_bytes: int) -> Optional[List[Optional[Dims]]]:
        """The shapes of the answer of a call that was noted; None: it must be run."""
        series = self._series[call.family]
        ran = series.ran
        if ran is None or series.steady < _STEADY or series.answer_step is None or series.collects:
            return None
        before, now = _flat(ran.shapes), _flat(call.shapes)
        longest = max(to / max(start, 1) for start, to in zip(before, now))
        if longest >= _LONGER or call.live_bytes + _LONGER**2 * series.nbytes > peak_bytes:
            return None
        steps = _steps(before, now, series.step)
        return None if steps is None else _moved(series.answer, series.answer_step, steps)

    def ran(self, call: Call, answer: Shapes, nbytes: int) -> None:
        """A call was run, and this is what it was answered."""
        series = self._series[call.family]
        before = series.ran
        if before is not None and series.step and series.steady:
            steps = _steps(_flat(before.shapes), _flat(call.shapes), series.step)
            series.answer_step = _growth(series.answer, answer, steps)
            left = call.live_bytes - before.live_bytes
            series.collects = series.steady > 1 and left > _LEFT_BEHIND * series.nbytes
        series.ran, series.answer, series.nbytes = call, answer, nbytes


def _flat(shapes: Shapes) -> Dims:
    return tuple(size for shape in shapes if shape is not None for size in shape)


def _difference(before: Call, now: Call) -> Dims:
    """By what the inputs have grown; nothing where they have not, or a step of training was between them."""
    first, second = _flat(before.shapes), _flat(now.shapes)
    step = tuple(to - start for start, to in zip(first, second))
    same = len(first) == len(second) and before.phase == now.phase
    return step if same and min(step, default=0) >= 0 and any(step) else ()


def _steps(before: Dims, now: Dims, step: Dims) -> Optional[int]:
    """How often the inputs have grown by a step; None where that is not all that differs: another batch."""
    steps = next((to - start) // by for start, to, by in zip(before, now, step) if by)
    exact = all(to - start == steps * by for start, to, by in zip(before, now, step))
    return steps if exact else None


def _growth(before: Shapes, now: Shapes, steps: Optional[int]) -> Optional[Dims]:
    """Of an answer in one step; None where it does not grow evenly, or is another kind of answer."""
    ranks, ranks_now = ([shape and len(shape) for shape in answer] for answer in (before, now))
    if not steps or ranks != ranks_now:
        return None
    changes = [to - start for start, to in zip(_flat(before), _flat(now))]
    return None if any(change % steps for change in changes) else tuple(by // steps for by in changes)


def _moved(answer: Shapes, by: Dims, steps: int) -> List[Optional[Dims]]:
    """An answer's shapes some steps later."""
    growth = iter(by)
    return [
        None if shape is None else tuple(size + steps * next(growth) for size in shape) for shape in answer
    ]
