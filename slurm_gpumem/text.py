"""Texts for people: names that others chose, made harmless and short enough; nouns with their number."""

from __future__ import annotations

from typing import Optional


def printable(text: str) -> str:
    """Nothing that steers a terminal or turns a line's direction: what cannot be printed becomes "?"."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def clipped(text: str, longest: int) -> str:
    """The same, at most `longest` characters; "…" at the end says that there was more."""
    shown = printable(text[: longest + 1])
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def fitted(text: str, width: int) -> str:
    """At most `width` wide; a "+" at the end says that there was more, as with sacct."""
    return text if len(text) <= width else text[: width - 1] + "+"


def count(number: int, one: str, many: Optional[str] = None) -> str:
    """ "1 job", "1,200 jobs"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
