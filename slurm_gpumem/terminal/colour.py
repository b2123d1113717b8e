"""Colours on a terminal: only where somebody looks, never the only thing that says something."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple, Optional, TextIO

CHOICES = ("auto", "always", "never")


class Palette(NamedTuple):
    """What colours texts, or leaves them as they are."""

    on: bool = False

    def bold(self, text: str) -> str:
        """For what is to be seen first."""
        return self._with("1", text)

    def dim(self, text: str) -> str:
        """For what may be passed over."""
        return self._with("2", text)

    def red(self, text: str) -> str:
        """For what went wrong."""
        return self._with("31", text)

    def yellow(self, text: str) -> str:
        """For what may go wrong."""
        return self._with("33", text)

    def green(self, text: str) -> str:
        """For what is well."""
        return self._with("32", text)

    def _with(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.on and text.strip() else text


def palette(choice: str = "auto", stream: Optional[TextIO] = None) -> Palette:
    """The palette for a stream (default: stdout): `auto` colours terminals, unless NO_COLOR is set."""
    if choice != "auto":
        return Palette(choice == "always")
    terminal = (sys.stdout if stream is None else stream).isatty()
    return Palette(terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb")
