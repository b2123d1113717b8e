"""Free TCP ports, held until their daemons have bound them."""

from __future__ import annotations

import random
import socket
from types import TracebackType
from typing import List, Optional, Type

from slurm_gpumem.errors import DevClusterError

# Below the range that the kernel uses for outgoing connections (32768 and up).
_FIRST, _LAST = 20000, 32000


class PortReservation:
    """`count` ports that no other dev cluster takes while this is open."""

    def __init__(self, count: int) -> None:
        self._sockets: List[socket.socket] = []
        candidates = random.sample(range(_FIRST, _LAST), _LAST - _FIRST)
        for port in candidates:
            if len(self._sockets) == count:
                break
            self._try(port)
        if len(self._sockets) < count:
            self.close()
            raise DevClusterError(f"found no {count} free TCP ports between {_FIRST} and {_LAST}")

    @property
    def ports(self) -> List[int]:
        """The reserved ports."""
        return [held.getsockname()[1] for held in self._sockets]

    def close(self) -> None:
        """Release all ports."""
        for held in self._sockets:
            held.close()
        self._sockets = []

    def __enter__(self) -> PortReservation:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def _try(self, port: int) -> None:
        held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            held.bind(("", port))
        except OSError:
            held.close()
            return
        # Set only after binding: binding without it makes another reservation fail, and having it set lets
        # the daemon, which binds with it, succeed while we still hold the port without listening.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._sockets.append(held)
