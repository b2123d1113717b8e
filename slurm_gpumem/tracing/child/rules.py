"""The rules under which a user's code runs in the child: no network, no exit, harmless forks.

They protect against accidents, not against malice: the code runs as its own user, who could run it anyway.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable, List, Tuple

from slurm_gpumem.tracing.child.blame import here, is_users

_MOST_FORKS = 64
_MOST_FILES = 1000
_PLACES = (os.path.expanduser("~") + os.sep, os.getcwd() + os.sep)
"""Where files are a user's: at home, and where the command runs."""
_DEEPEST_FORK = 2
_LOCAL = ("localhost", "127.0.0.1", "::1", "", None)


class NetworkRefusedError(ConnectionError):
    """The code tried to use the network."""


class ForkRefusedError(OSError):
    """The code started too many processes."""


class Rules:
    """What the audit hook saw; one for the life of the child process."""

    def __init__(self) -> None:
        self.refused: List[Tuple[str, str]] = []
        """(host, line of the user's code) of every refused connection."""
        self.opened: List[str] = []
        """Files of the user's that were opened to be read: configurations, vocabularies."""
        self._forks = 0
        self._depth = 0

    def enforce(self, in_forked_child: Callable[[], None]) -> None:
        """Enable the rules; they cannot be disabled again."""
        sys.addaudithook(self._audit)

        def forked() -> None:
            self._depth += 1
            in_forked_child()

        os.register_at_fork(after_in_child=forked)

    def _audit(self, event: str, arguments: Tuple[Any, ...]) -> None:
        if event == "socket.connect":
            address = arguments[1]
            # A path is a local socket: multiprocessing uses those.
            if isinstance(address, tuple) and address[0] not in _LOCAL:
                self._refuse(str(address[0]))
        elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
            host = arguments[0].decode() if isinstance(arguments[0], bytes) else arguments[0]
            if host not in _LOCAL:
                self._refuse(str(host))
        elif event == "open" and isinstance(arguments[0], str) and arguments[1] in ("r", "rb"):
            path = os.path.abspath(arguments[0])
            if len(self.opened) < _MOST_FILES and is_users(path) and path.startswith(_PLACES):
                self.opened.append(path)
        elif event in ("os.fork", "os.forkpty"):
            self._forks += 1
            if self._forks > _MOST_FORKS or self._depth >= _DEEPEST_FORK:
                raise ForkRefusedError("too many processes were forked")

    def _refuse(self, host: str) -> None:
        self.refused.append((host, here()))
        raise NetworkRefusedError(f"no network while a model is traced (it asked for {host})")


def die_with_parent() -> None:
    """End this process when the command that started it ends (Linux only)."""
    if sys.platform != "linux":
        return
    import ctypes
    import signal

    parent_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(parent_death_signal, int(signal.SIGKILL), 0, 0, 0)
