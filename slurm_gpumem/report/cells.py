"""Texts of users in files that other programs split: made harmless for `-P` and for spreadsheets."""

from __future__ import annotations

from typing import Any

from slurm_gpumem.text import printable

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def parsable(text: str) -> str:
    """For a line whose columns "|" parts."""
    return printable(text).replace("|", "?")


def cell(value: Any) -> Any:
    """For a spreadsheet: what would be read as a formula gets a quote before it; numbers stay numbers."""
    if not isinstance(value, str):
        return "" if value is None else value
    text = printable(value)
    return "'" + text if text.startswith(_FORMULA) or text.lstrip()[:1] in _FORMULA else text
