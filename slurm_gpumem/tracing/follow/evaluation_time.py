"""How long batches of an evaluation take when models answer as before, and whether there is time for all.

In training nobody needs them: what it counts is set (`counters`)."""

from __future__ import annotations

from collections import deque
from typing import Deque, Optional

from slurm_gpumem.tracing.follow.fast_forward import SEEN_EVALUATIONS
from slurm_gpumem.tracing.follow.steps import Steps, spent

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
