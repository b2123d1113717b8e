"""A screen that is drawn again and again in place, with plain ANSI sequences."""

from __future__ import annotations

import shutil
import sys
from typing import List, Sequence

_ENTER = "\x1b[?1049h\x1b[?25l"
_LEAVE = "\x1b[?25h\x1b[?1049l"


class LiveScreen:
    """A context manager: another screen while it lasts, the old one and the cursor afterwards."""

    def __enter__(self) -> LiveScreen:
        sys.stdout.write(_ENTER)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()

    def draw(self, lines: Sequence[str]) -> None:
        """Home, each line cleared to its end, then the rest: no flicker, works over ssh."""
        shown: List[str] = list(lines[: shutil.get_terminal_size().lines - 1])
        sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in shown) + "\x1b[J")
        sys.stdout.flush()
