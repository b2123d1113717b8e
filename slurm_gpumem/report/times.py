"""Times as sacct takes them: 2026-11-15T08:00, 1115, 08:30, today, now-7days; and 7d, -7days."""

from __future__ import annotations

import re
import time
from typing import Collection, List, Optional, Sequence

from slurm_gpumem.errors import UsageError
from slurm_gpumem.units import SECONDS

_NOW = re.compile(r"now(?:([+-])([0-9]{1,9})\s*([a-z]*))?")
_AGO = re.compile(r"-?([0-9]{1,9})\s*([a-z]+)")
_WORDS = {
    **dict.fromkeys(("", "s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("d", "day", "days"), "d"),
    **dict.fromkeys(("w", "week", "weeks"), "w"),
}
"""What units are called; "months" is none of them, and must not be read as minutes."""
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?\s*(am|pm)?")
_ISO = re.compile(r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})(?:[t ]([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?)?")
_MONTH_DAY = re.compile(
    r"([0-9]{1,2})[/.]([0-9]{1,2})(?:[/.]([0-9]{2}|[0-9]{4}))?(?:-([0-9]{1,2}):([0-9]{2}))?"
)
_DIGITS = re.compile(r"([0-9]{2})([0-9]{2})([0-9]{2})?")
_HOURS = {"midnight": 0, "elevenses": 11, "noon": 12, "fika": 15, "teatime": 16}


def parse_time(text: str, now: Optional[float] = None) -> float:
    """Unix time; UsageError says which ways there are to write one."""
    moment = time.time() if now is None else now
    found = _parse(text.strip().lower(), moment)
    if found is None:
        raise UsageError(
            f"{text!r} is not a time; "
            "write it like 2026-11-15, 2026-11-15T08:30, 08:30, today, now-2hours or -7days"
        )
    return found


def joined_times(argv: Sequence[str], options: Collection[str]) -> List[str]:
    """`-S -7days` as one word, since argparse takes what begins with "-" for an option."""
    words: List[str] = []
    for word in argv:
        if words and words[-1] in options and _AGO.fullmatch(word.lower()) and word.startswith("-"):
            words[-1] += f"={word}" if words[-1].startswith("--") else word
        else:
            words.append(word)
    return words


def _parse(text: str, now: float) -> Optional[float]:
    match = _NOW.fullmatch(text)
    if match:
        word = match[3] or ""
        if word not in _WORDS:
            return None
        return now + (-1 if match[1] == "-" else 1) * int(match[2] or 0) * SECONDS[_WORDS[word]]
    match = _AGO.fullmatch(text)
    if match and match[2] in _WORDS:
        return now - int(match[1]) * SECONDS[_WORDS[match[2]]]
    today = time.localtime(now)
    year, month, day = today.tm_year, today.tm_mon, today.tm_mday
    if text in ("today", "yesterday", "tomorrow"):
        return _at(year, month, day + {"today": 0, "yesterday": -1, "tomorrow": 1}[text])
    if text in _HOURS:
        return _at(year, month, day, _HOURS[text])
    match = _CLOCK.fullmatch(text)
    if match:
        hour = int(match[1]) % 12 + (12 if match[4] == "pm" else 0) if match[4] else int(match[1])
        return _at(year, month, day, hour, int(match[2]), int(match[3] or 0))
    match = _ISO.fullmatch(text)
    if match:
        return _at(*(int(part or 0) for part in match.groups()))
    match = _MONTH_DAY.fullmatch(text) or _DIGITS.fullmatch(text)
    if match:
        parts = [int(part or 0) for part in match.groups()] + [0, 0]
        years = parts[2] + 2000 if 0 < parts[2] < 100 else parts[2] or year
        return _at(years, parts[0], parts[1], parts[3], parts[4])
    return None


def _at(year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0) -> Optional[float]:
    if not (
        1970 <= year <= 9999
        and 1 <= month <= 12
        and 0 <= day <= 32
        and hour < 25
        and minute < 60
        and second < 61
    ):
        return None
    try:
        return time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
    except (OverflowError, ValueError):
        return None
