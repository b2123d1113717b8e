"""Texts of users made harmless: for a terminal, for a column, for a spreadsheet."""

from __future__ import annotations

from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def clean(text: str) -> str:
    """Nothing that steers a terminal or turns a line's direction: what cannot be printed becomes "?"."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def fitted(text: str, width: int) -> str:
    """At most `width` wide; a "+" at the end says that there was more, as with sacct."""
    return text if len(text) <= width else text[: width - 1] + "+"


def parsable(text: str) -> str:
    """For a line whose columns "|" parts."""
    return clean(text).replace("|", "?")


def cell(value: Any) -> Any:
    """For a spreadsheet: what would be read as a formula gets a quote before it; numbers stay numbers."""
    if not isinstance(value, str):
        return "" if value is None else value
    text = clean(value)
    return "'" + text if text.startswith(_FORMULA) or text.lstrip()[:1] in _FORMULA else text
