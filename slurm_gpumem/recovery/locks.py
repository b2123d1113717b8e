"""One recovery per job at a time: byte locks in one small file of SlurmUser's.

The kernel drops them with the process that held them, so nothing is left behind by whoever is killed.
"""

from __future__ import annotations

import fcntl
import os
import time
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Optional

FILE_NAME = "gpumem-recovery.lock"
SWEEP = "sweep"
SWEEP_FILE = "gpumem-recovery.sweep"
_PAUSE_S = 0.05


@contextmanager
def lock(folder: Optional[Path], name: str, wait_s: float = 0.0) -> Iterator[bool]:
    """Whether it is ours; True as well where no file can be had, since one run alone is the rule."""
    try:
        handle = None if folder is None else os.open(folder / FILE_NAME, _FLAGS, 0o600)
    except OSError:
        handle = None
    if handle is None:
        yield True
        return
    try:
        yield _take(handle, zlib.crc32(name.encode()), time.monotonic() + wait_s)
    finally:
        os.close(handle)


def is_due(folder: Optional[Path], every_s: float) -> bool:
    """Whether the last look for leftovers was longer ago; then this is one."""
    if folder is None:
        return True
    path = folder / SWEEP_FILE
    try:
        age_s = time.time() - os.stat(path, follow_symlinks=False).st_mtime
        if 0 <= age_s < every_s:
            return False
        os.utime(path, follow_symlinks=False)
    except FileNotFoundError:
        os.close(os.open(path, _FLAGS, 0o600))
    except OSError:
        # Without a note of the last one it is done each time.
        return True
    return True


def _take(handle: int, offset: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE_S)
        except OSError:
            # A file system without locks.
            return True


_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
