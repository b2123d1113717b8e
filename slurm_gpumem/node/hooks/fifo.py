"""A FIFO by which other processes wake a daemon of ours; it is open for both ends, so that neither waits."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import time
from pathlib import Path
from typing import List, Optional

_READ_AT_ONCE = 65536
"""The most that Linux keeps in a pipe."""


class Mailbox:
    """Lines that others write into a FIFO; who may write is the file's `mode`.

    What comes out of one that users may write to is anybody's word: lines of any length, cut anywhere.
    """

    def __init__(self, path: Path, mode: int = 0o600) -> None:
        self._handle = _open_fifo(path, mode)
        self._cut = b""
        """The beginning of a line whose end has not come yet."""

    def wait(self, until: Optional[float]) -> List[bytes]:
        """The lines that have come, as soon as there are some; none at `until`, by the monotonic clock."""
        left = None if until is None else max(0.0, until - time.monotonic())
        if not select.select([self._handle], [], [], left)[0]:
            return []
        data = self._cut + os.read(self._handle, _READ_AT_ONCE)
        *lines, self._cut = data.split(b"\n")
        self._cut = self._cut[:_READ_AT_ONCE]
        return lines

    def wake(self) -> None:
        """Write an empty line ourselves, so that a thread that waits looks up."""
        os.write(self._handle, b"\n")

    def close(self) -> None:
        """Nobody reads it from now on; the file stays for the next one."""
        os.close(self._handle)


def _open_fifo(path: Path, mode: int) -> int:
    """The FIFO there, made if there is none; the folder is ours, so anything else there is in the way."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISFIFO(os.lstat(path).st_mode):
            os.unlink(path)
    with contextlib.suppress(FileExistsError):  # of the sampler before us, or made by a hook
        os.mkfifo(path, mode)
    handle = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    os.fchmod(handle, mode)  # whatever the umask made of it
    return handle
