"""Bounds on time that hold on a slow machine and on a busy one.

Tests with such a bound are marked `timing`; `make bench` runs them one at a time, with nothing beside them.
"""

from __future__ import annotations

import functools
import time
from typing import Callable, TypeVar

Answer = TypeVar("Answer")

REFERENCE_LOOP_S = 0.025
"""Seconds that a million rounds of an empty loop take on the machine that the bounds are meant for."""


def best_cpu_s(work: Callable[[], object], times: int) -> float:
    """Processor seconds of the fastest of several runs: what the work itself costs."""
    taken = []
    for _ in range(times):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken)


@functools.cache
def slowness() -> float:
    """The factor of a bound: how slow the machine is, and half as much again for a busy one's cold caches."""
    return 1.5 * max(1.0, best_cpu_s(_loop, 3) / REFERENCE_LOOP_S)


class Pace:
    """How long work of one kind takes here and now; for work that a time limit ends once it has got going."""

    def __init__(self) -> None:
        self._quickest_s = 0.0

    def run(self, work: Callable[[], Answer]) -> Answer:
        """Do it and remember how long it took."""
        begin = time.monotonic()
        try:
            return work()
        finally:
            took = time.monotonic() - begin
            self._quickest_s = min(took, self._quickest_s or took)

    def limit_s(self, usual_s: float) -> float:
        """A limit in which work like it could have been done several times."""
        return max(usual_s, 6 * self._quickest_s)


def _loop() -> None:
    for _ in range(1_000_000):
        pass
