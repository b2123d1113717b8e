"""Read the end of a job's log as its user: a regular file, the last 64 KiB, in bounded time.

Only ever called in the user's own context. Even so, a log may be a FIFO that nobody writes, a
device, or a file of a terabyte with holes: none of them may hold a job's end.
"""

from __future__ import annotations

import os
import signal
import stat
from contextlib import contextmanager
from types import FrameType
from typing import Iterator, Optional

TAIL_BYTES = 64 * 1024
TIME_LIMIT_S = 2.0
_STDERR = 2


def read_tail(path: str) -> str:
    """The last 64 KiB of a regular file; "" for anything else and for what cannot be read."""
    try:
        return _read(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC))
    except (OSError, ValueError):
        # No log is no witness; the job's exit code stands for itself.
        return ""


def read_own_stderr() -> str:
    """The same for the file behind our own stderr: Slurm gives a task epilog the job's."""
    try:
        # Through /proc: it was opened for writing, and this leads to that very file, whatever its name.
        path = f"/proc/self/fd/{_STDERR}"
        if not stat.S_ISREG(os.fstat(_STDERR).st_mode):
            return ""
        return _read(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return ""


def is_own_stderr(path: str) -> bool:
    """Whether a path is the file behind our stderr."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(_STDERR))
    except OSError:
        return False


class TooSlowError(OSError):
    """A file system that does not answer."""


@contextmanager
def time_limit(seconds: float = TIME_LIMIT_S) -> Iterator[None]:
    """TooSlowError when what is inside takes longer."""

    def stop(number: int, frame: Optional[FrameType]) -> None:
        raise TooSlowError(f"no answer within {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _read(handle: int) -> str:
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            return ""
        start = max(0, found.st_size - TAIL_BYTES)
        data = os.pread(handle, TAIL_BYTES, start)
    finally:
        os.close(handle)
    text = data.decode("utf-8", "replace").replace("\0", "")
    # The first line is only the end of one.
    return text.partition("\n")[2] if start else text
