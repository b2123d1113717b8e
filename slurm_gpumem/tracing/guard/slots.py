"""Traces of a machine: how many run at once, on which CPUs each, and which one is next.

Places and turns are names of sockets: the kernel gives each name to one process of the machine, and takes it
back when that process ends, however it does. No file could be left behind or be somebody else's.
"""

from __future__ import annotations

import os
import re
import socket
import time
from contextlib import closing
from pathlib import Path
from typing import Callable, List, Optional, Tuple

_NAME = "gpumem-trace"
_POLL_S = 0.2
_USUAL_CPUS = 2
"""Of a trace that may use all."""
AS_FREE = 0
"""Instead of a number of traces: as many as there are free CPUs for."""


class Slot:
    """A place among the traces of a machine, until it is given back."""

    def __init__(self, at_once: int, cpus: Optional[int] = None) -> None:
        self._at_once = at_once
        self._cpus = cpus or _USUAL_CPUS
        self._held: Optional[socket.socket] = None
        self.number = 0
        """On this machine, from 0."""

    def take(self, waiting: Callable[[int], None] = lambda place: None) -> None:
        """Wait for it; `waiting` hears the place in the queue, again and again.

        Each user has a queue: nobody waits behind all traces of somebody else.
        """
        queue = f"{_NAME}-{os.geteuid()}-waits"
        ticket = max(_numbers(queue), default=0) + 1
        while (turn := _bound(queue, ticket)) is None:
            ticket += 1
        with closing(turn):
            before = _cpu_times()
            while True:
                place = 1 + sum(other < ticket for other in _numbers(queue))
                now = _cpu_times()
                if place == 1 and self._try(_free(before, now)):
                    return
                before = now
                waiting(place)
                time.sleep(_POLL_S)

    def _try(self, free_cpus: float) -> bool:
        fitting = len(os.sched_getaffinity(0)) // self._cpus if free_cpus >= self._cpus else 1
        for number in range(self._at_once or max(1, fitting)):
            self._held = _bound(_NAME, number)
            if self._held is not None:
                self.number = number
                return True
        return False

    def give_back(self) -> None:
        """For others."""
        if self._held is not None:
            self._held.close()


def _bound(name: str, number: int) -> Optional[socket.socket]:
    """The socket of this name; None where another process has it."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        one.bind(f"\0{name}-{number}")
    except OSError:
        one.close()
        return None
    return one


def _numbers(name: str) -> List[int]:
    """Those that are taken."""
    try:
        taken = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []  # then all are first
    return [int(number) for number in re.findall(rf" @{re.escape(name)}-(\d+)$", taken, re.MULTILINE)]


def _cpu_times() -> Tuple[int, int]:
    """Of all CPUs since the machine has started: idle, and in all."""
    try:
        words = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    except OSError:
        return 0, 0
    times = [int(word) for word in words[1:9]]
    return times[3] + times[4], sum(times)


def _free(before: Tuple[int, int], now: Tuple[int, int]) -> float:
    """CPUs that nobody has used in between."""
    passed = now[1] - before[1]
    return (os.cpu_count() or 1) * (now[0] - before[0]) / passed if passed else 0.0


def cpus_of(number: int, wanted: Optional[int], cpus: List[int]) -> List[int]:
    """The CPUs of a slot: others than those of the slots before it, as far as there are enough."""
    count = min(wanted or len(cpus), len(cpus))
    first = number * count % len(cpus)
    return sorted((cpus + cpus)[first : first + count])
