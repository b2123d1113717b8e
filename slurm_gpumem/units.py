"""Numbers at the edges: MiB and seconds inside, human units where people read or write."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from contextvars import ContextVar
from math import ceil
from typing import Iterator, Optional, Tuple

from slurm_gpumem.errors import UsageError

MIB, GIB = 1 << 20, 1 << 30
"""Bytes."""
_FACTOR_MIB = {"k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0 * 1024}
# [0-9], not \d: a size is ASCII, and int() of other digits would surprise.
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_SURELY_MIB = 512
"""From this number on, nobody means GiB of one GPU."""
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
"""By the letter that stands for them."""


def parse_mib(text: str, *, default_unit: str = "") -> int:
    """MiB of "12G", "12GiB", "512M" or "1.5g", rounded up.

    A bare number is in `default_unit`; without one it is refused, since people mean GiB as often as MiB.
    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise UsageError(f"{text!r} is not a memory size; write it like 12G, 1.5G or 512M")
    number, unit = float(match[1]), match[2].lower() or default_unit
    if not unit and number:
        meant = "M" if number >= _SURELY_MIB else "G"
        raise UsageError(f"{text!r} has no unit; did you mean {match[1]}{meant}?")
    mib = number * _FACTOR_MIB[unit or "m"]
    return int(-(-mib // 1))


def parse_seconds(text: str) -> int:
    """Seconds of "2h", "90m" or "30s"."""
    number, unit = text[:-1], text[-1:]
    if not (re.fullmatch("[0-9]{1,18}", number) and unit in SECONDS):
        raise UsageError(f"{text!r} is not a time; write it like 2h, 90m or 30s")
    return int(number) * SECONDS[unit]


def seconds_text(seconds: int) -> str:
    """What `parse_seconds` reads: "2h", "90m"."""
    unit = next(unit for unit in "dhms" if seconds % SECONDS[unit] == 0)
    return f"{seconds // SECONDS[unit]}{unit}"


def about_time(seconds: float) -> str:
    """For a sentence: "45 s", "40 min", "2.5 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def ceil_div(amount: int, unit: int) -> int:
    """How many whole units hold `amount`."""
    return -(-amount // unit)


UNITS = {"MiB": 1.0, "GiB": 1024.0, "GB": 1e9 / MIB}
"""MiB of one, by the name that people give with --units."""
_UNIT: ContextVar[Optional[str]] = ContextVar("unit", default=None)


@contextmanager
def sizes_in(unit: Optional[str]) -> Iterator[None]:
    """Write all sizes in this unit of UNITS; None: in GiB, small ones in MiB."""
    token = _UNIT.set(unit)
    try:
        yield
    finally:
        _UNIT.reset(token)


def format_mib(mib: float) -> str:
    """A size in a sentence: "11.9 GiB", or "620 MiB" below one GiB."""
    unit = _UNIT.get() or ("MiB" if mib < 1024 else "GiB")
    return f"{mib / UNITS[unit]:,.{_digits(unit)}f} {unit}"


def format_at_least(mib: int) -> str:
    """A size to reserve, for people: rounded up, so that what is read off it is enough."""
    unit = _UNIT.get() or ("MiB" if mib < 1024 else "GiB")
    steps = 10 ** _digits(unit)
    return f"{ceil(round(mib * steps / UNITS[unit], 6)) / steps:,.{_digits(unit)}f} {unit}"


def exact_mib(mib: float) -> str:
    """A size where every MiB matters: "13,662 MiB"; in another unit with two digits."""
    unit = _UNIT.get() or "MiB"
    return f"{mib / UNITS[unit]:,.{0 if unit == 'MiB' else 2}f} {unit}"


def _digits(unit: str) -> int:
    return 0 if unit == "MiB" else 1


# -- In tables, where what is not known leaves its cell empty ------------------------------------------


def short_mib(mib: Optional[float]) -> str:
    """ "11.9G", "620M" below one GiB."""
    if mib is None:
        return ""
    unit = _UNIT.get() or ("MiB" if mib < 1024 else "GiB")
    return f"{mib / UNITS[unit]:.{_digits(unit)}f}{'GB' if unit == 'GB' else unit[0]}"


def percent(part: Optional[float], *, sign: bool = False, digits: int = 0) -> str:
    """ "+3%" of 0.03; huge ones are not counted out."""
    if part is None:
        return ""
    if abs(part) >= 10:
        return f">{'+' if sign and part > 0 else ''}999%"
    value = round(part * 100, digits) or 0.0
    return f"{value:+.{digits}f}%" if sign and value else f"{value:.{digits}f}%"


def duration(seconds: Optional[float]) -> str:
    """ "2-03:04:05", as Slurm writes it."""
    if seconds is None:
        return ""
    whole = max(0, round(seconds))
    days, rest = divmod(whole, 86_400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def moment(when: Optional[float]) -> str:
    """ "2026-11-15T08:30:00", local, as Slurm writes it."""
    return "" if when is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(when))


def minute(when: Optional[float]) -> str:
    """ "2026-11-15 08:30", local, in a sentence."""
    return "" if when is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(when))


def hours(seconds: Optional[float]) -> str:
    """GPU-hours, with as many digits as matter."""
    if seconds is None:
        return ""
    value = seconds / 3600
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def gpu_hours(*seconds: float) -> Tuple[str, ...]:
    """GPU times in one unit, the last with its name: ("31", "58 GPU-hours"); short ones in minutes."""
    if max(seconds) >= 3600:
        texts, unit = [hours(value) for value in seconds], "GPU-hours"
    else:
        texts, unit = [f"{value / 60:.1f}" for value in seconds], "GPU-minutes"
    return (*texts[:-1], f"{texts[-1]} {unit}")


def energy(joules: Optional[float]) -> str:
    """ "1.2 kWh", "340 Wh"."""
    if joules is None:
        return ""
    wh = joules / 3600
    return f"{wh / 1000:,.1f} kWh" if wh >= 1000 else f"{wh:.0f} Wh" if wh >= 10 else f"{wh:.1f} Wh"
