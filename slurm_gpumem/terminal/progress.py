"""What goes on, on one line of a terminal's stderr (nothing in a pipe), or on a screen of its own."""

from __future__ import annotations

import shutil
import sys
import time
from typing import List, Sequence

_AFTER_S, _EVERY_S, _WIDTH = 0.5, 0.1, 30


class StatusLine:
    """Call it with a text that replaces the one before; a context manager that clears its line at the end."""

    def __init__(self) -> None:
        self.on = sys.stderr.isatty()
        self._shown = ""

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._shown:
            self("")

    def __call__(self, text: str) -> None:
        """Show it."""
        if self.on and text != self._shown:
            self._shown = text
            sys.stderr.write(f"\r{text}\x1b[K")
            sys.stderr.flush()


class ProgressBar:
    """Call it with (done, in all); a context manager that clears its line at the end.

    Nothing is shown of what is done at once.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._begun = time.monotonic()
        self._drawn = 0.0
        self._line = StatusLine()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *exc: object) -> None:
        self._line.__exit__(*exc)

    def __call__(self, done: int, total: int) -> None:
        """Draw it, if it is time to."""
        now = time.monotonic()
        if not self._line.on or not total or now - self._begun < _AFTER_S or now - self._drawn < _EVERY_S:
            return
        self._drawn = now
        filled = done * _WIDTH // total
        left = (now - self._begun) / done * (total - done) if done else None
        eta = "" if left is None else f", {left:.0f} s left"
        if done >= total:
            eta = ", taking sums"
        self._line(f"{self._what} [{'#' * filled}{'.' * (_WIDTH - filled)}] {done:,} of {total:,}{eta}")


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
