"""How many traces run at once on this machine, and on which CPUs each.

A slot is the name of a socket: the kernel gives each name to one process of the machine, and takes it back
when that process ends, however it does. There is no file that could be left behind or be somebody else's.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Callable, List, Optional

_NAME = "gpumem-trace"
_WAIT_S = 60.0
_POLL_S = 0.2


class Slot:
    """A place among the traces of a machine, for as long as the `with` block lasts."""

    def __init__(self, of_user: Optional[int], of_machine: Optional[int]) -> None:
        self._most = ((f"-{os.geteuid()}", of_user), ("", of_machine))
        self._held: List[socket.socket] = []
        self.number = 0
        """On this machine, from 0."""

    def take(self, waiting: Callable[[], None] = lambda: None) -> str:
        """ "" when it has one, else why there is none; others may end within a minute."""
        end = time.monotonic() + _WAIT_S
        while True:
            why = self._try()
            if not why or time.monotonic() > end:
                return why
            waiting()
            time.sleep(_POLL_S)

    def _try(self) -> str:
        for owner, most in self._most:
            if most is None:
                continue
            number = self._bound(owner, most)
            if number is None:
                self.give_back()
                whose = "of yours " if owner else ""
                return f"{most} traces {whose}run on this machine already"
            self.number = number
        return ""

    def _bound(self, owner: str, most: int) -> Optional[int]:
        for number in range(most):
            one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                one.bind(f"\0{_NAME}{owner}-{number}")
            except OSError:
                one.close()
                continue
            self._held.append(one)
            return number
        return None

    def give_back(self) -> None:
        """For others."""
        while self._held:
            self._held.pop().close()


def cpus_of(number: int, wanted: Optional[int], cpus: List[int]) -> List[int]:
    """The CPUs of a slot: others than those of the slots before it, as far as there are enough."""
    count = min(wanted or len(cpus), len(cpus))
    first = number * count % len(cpus)
    return sorted((cpus + cpus)[first : first + count])
