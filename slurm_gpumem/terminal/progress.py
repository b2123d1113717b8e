"""A progress bar on a terminal's stderr; nothing in a pipe, and nothing for what is done at once."""

from __future__ import annotations

import sys
import time

_AFTER_S, _EVERY_S, _WIDTH = 0.5, 0.1, 30


class ProgressBar:
    """Call it with (done, in all); a context manager that clears its line at the end."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._begun = time.monotonic()
        self._drawn = 0.0
        self._shown = False
        self._on = sys.stderr.isatty()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def __call__(self, done: int, total: int) -> None:
        """Draw it, if it is time to."""
        now = time.monotonic()
        if not self._on or not total or now - self._begun < _AFTER_S or now - self._drawn < _EVERY_S:
            return
        self._drawn, self._shown = now, True
        filled = done * _WIDTH // total
        left = (now - self._begun) / done * (total - done) if done else None
        eta = "" if left is None else f", {left:.0f} s left"
        if done >= total:
            eta = ", taking sums"
        line = f"{self._what} [{'#' * filled}{'.' * (_WIDTH - filled)}] {done:,} of {total:,}{eta}"
        sys.stderr.write(f"\r{line}\x1b[K")
        sys.stderr.flush()
