"""What tells our own summaries from all others, at a glance."""

from __future__ import annotations

FORMAT = "gpumem-summary/1"
_NAME = '"gpumem-summary/'
_START = 200


def is_own(text: str) -> bool:
    """Whether a text is (or means to be) a summary of ours."""
    start = text.lstrip("\ufeff \t\r\n")[:_START]
    return start.startswith("{") and _NAME in start
