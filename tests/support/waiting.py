"""Waiting for what other processes do."""

from __future__ import annotations

import errno
import shutil
import time
from pathlib import Path
from typing import Any, Callable

PATIENCE_S = 120.0
"""What hangs is found by then; what is only slow, on a machine that is busy with other work, comes before."""


def until(
    condition: Callable[[], Any], timeout_s: float = PATIENCE_S, *, but: Callable[[], str] = str
) -> Any:
    """Poll for a true value and return it; fails the test when none comes in time, and says `but`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"did not come true within {timeout_s:g} s {but()}"
        time.sleep(0.05)
    return value


def remove_tree(folder: Path) -> None:
    """Remove a folder, also while a program that is ending writes its last line into it."""

    def removed() -> bool:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            # Written into while it was emptied, or emptied by who wrote: the next try finds it still.
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise
        return not folder.exists()

    until(removed)
