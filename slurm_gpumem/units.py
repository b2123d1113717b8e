"""Memory sizes: MiB integers inside, human units at the edges."""

from __future__ import annotations

import re

from slurm_gpumem.errors import UsageError

MIB, GIB = 1 << 20, 1 << 30
"""Bytes."""
_FACTOR_MIB = {"k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0 * 1024}
# [0-9], not \d: a size is ASCII, and int() of other digits would surprise.
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def parse_mib(text: str, *, default_unit: str = "m") -> int:
    """MiB of "12G", "12GiB", "512M" or "1.5g"; a bare number is in `default_unit`. Rounds up."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise UsageError(f"{text!r} is not a memory size; write it like 12G, 1.5G or 512M")
    mib = float(match[1]) * _FACTOR_MIB[match[2].lower() or default_unit]
    return int(-(-mib // 1))


def format_mib(mib: float) -> str:
    """A size for people: "11.9 GiB", or "620 MiB" below one GiB."""
    if mib < 1024:
        return f"{mib:.0f} MiB"
    return f"{mib / 1024:.1f} GiB"


def format_at_least(mib: int) -> str:
    """A size to reserve, for people: rounded up, so that what is read off it is enough."""
    return format_mib(mib) if mib < 1024 else f"{ceil_div(mib * 10, 1024) / 10:.1f} GiB"


def ceil_div(amount: int, unit: int) -> int:
    """How many whole units hold `amount`."""
    return -(-amount // unit)
