"""The kit's child processes: what they say, and that none of them is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence

_LAST_LINES = 20
_POLL_S = 0.05


class Child:
    """A process whose lines of JSON are read as they come."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.said: List[Dict[str, Any]] = []
        self.last: List[str] = []
        """Its last lines on stderr."""
        self._readers = [
            threading.Thread(target=read, daemon=True) for read in (self._read_answers, self._read_errors)
        ]
        for reader in self._readers:
            reader.start()

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    @property
    def code(self) -> Optional[int]:
        return self._process.poll()

    def answer(self, key: str) -> Optional[Any]:
        """The latest value that it has given for this key."""
        return next((one[key] for one in reversed(self.said) if key in one), None)

    def tell(self, word: str) -> None:
        """A line on its stdin; one that is gone hears nothing."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()

    def send(self, number: int) -> None:
        if self.runs:
            self._process.send_signal(number)

    def wait(self, timeout_s: float) -> bool:
        """Whether it ended within that time; all that it said has been read then."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        for reader in self._readers:
            reader.join(timeout=1.0)
        return True

    def end(self, grace_s: float = 10.0) -> None:
        """With all that it has started: it is the first of a session of its own."""
        if self.runs:
            self.send(signal.SIGTERM)
            self.wait(grace_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait(grace_s)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError):  # closed at its end
            for line in self._process.stdout:
                with contextlib.suppress(ValueError):  # a library may print, too
                    found = json.loads(line)
                    if isinstance(found, dict):
                        self.said.append(found)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with contextlib.suppress(OSError, ValueError):
            for line in self._process.stderr:
                self.last = [*self.last, line.rstrip()][-_LAST_LINES:]


class Children:
    """All that run now; `end` leaves none."""

    def __init__(self) -> None:
        self._known: List[Child] = []
        self._guard = threading.Lock()
        self.closed = False
        """Whether all are being ended."""
        self._waits = False
        """Whether a signal is to wait."""
        self._stopped = 0

    def start(self, argv: Sequence[str], environment: Mapping[str, str]) -> Child:
        """A new one; none after `end_all`."""
        # A signal in here would leave a process that nobody knows.
        with self.uninterrupted(), self._guard:
            if self.closed:
                raise ChildError("interrupted")
            child = Child(argv, environment)
            self._known.append(child)
        return child

    @contextlib.contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """A signal that comes to the main thread in here is heard at its end."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before, self._waits = self._waits, True
        try:
            yield
        finally:
            self._waits = before
        if self._stopped and not before:
            raise KitStopError(self._stopped)

    def stop(self, number: int) -> None:
        """A signal came, to the main thread: it goes no further."""
        if self._waits:
            self._stopped = number
        else:
            raise KitStopError(number)

    def end(self, child: Child, grace_s: float = 10.0) -> None:
        child.end(grace_s)
        with self._guard:
            self._known = [known for known in self._known if known is not child]

    def end_all(self) -> None:
        with self._guard:
            self.closed = True
            known = list(self._known)
        for child in known:
            child.send(signal.SIGTERM)
        for child in known:
            child.end(2.0)


class KitStopError(BaseException):
    """A signal; what is found is kept."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class ChildError(Exception):
    """A process of the kit did not do its part."""


def wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Poll; False when it did not come true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
