"""Values out of files that anybody may have written: of the right type and within bounds, or not known.

A first index of the accounting reads a million records with these: hence `type(x) is`, several values at
a time, and the caches.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

MOST_TEXT, MOST_NOTE = 64, 200
"""Longest name and longest note, in characters."""
MOST_ITEMS = 16
"""Longest list of texts, GPUs or events."""
MOST_WHOLE, MOST_MIB, MOST_TIME, MOST_AMOUNT, MOST_RATIO = 1 << 40, 1 << 31, 1e11, 1e15, 1.5
"""Numbers are below these; a measured part of 1 may be a little over."""

Get = Callable[[str], Any]
"""`get` of a table."""


@lru_cache(maxsize=16_384)
def clean_name(text: str) -> str:
    """A name made storable; the same names come again and again, and the cache is quicker than a look."""
    if len(text) > MOST_TEXT or not text.isascii() or not text.isprintable():
        return clean(text)[:MOST_TEXT]
    return text


def clean(text: str) -> str:
    """Text that JSON and SQLite can hold, without control characters; a printer makes it safe to show."""
    return "".join("?" if letter < " " else letter for letter in text).encode("utf-8", "replace").decode()


def names(get: Get, keys: Tuple[str, ...]) -> List[str]:
    """Names; "" for what is none."""
    return [clean_name(value) if type(value) is str else "" for value in map(get, keys)]


def texts(value: Any, longest: int = MOST_TEXT) -> Tuple[str, ...]:
    """The texts of a list."""
    if type(value) is not list:
        return ()
    return tuple([clean(text)[:longest] for text in value if type(text) is str][:MOST_ITEMS])


def wholes(get: Get, keys: Tuple[str, ...]) -> List[Optional[int]]:
    """Whole numbers from 0 on; None for what is none, a bool for example."""
    return [value if type(value) is int and 0 <= value < MOST_WHOLE else None for value in map(get, keys)]


def whole_list(value: Any, most: int) -> Tuple[int, ...]:
    """The whole numbers of a list, `most` of them at most."""
    if type(value) is not list:
        return ()
    return tuple([item for item in value[:most] if type(item) is int and 0 <= item < MOST_WHOLE])


def amounts(get: Get, bounds: Tuple[Tuple[str, float], ...]) -> List[Optional[float]]:
    """Finite numbers from 0 to below a bound each; json.loads lets NaN and Infinity through."""
    return [
        value if (type(value) is float or type(value) is int) and 0 <= value < most else None
        for key, most in bounds
        for value in (get(key),)
    ]


def moment(value: Any) -> Optional[float]:
    """A Unix time."""
    return float(value) if (type(value) is float or type(value) is int) and 0 < value < MOST_TIME else None


def values_of(table: Mapping[str, Any], getter: Callable[..., Any], keys: Sequence[str]) -> Any:
    """The values of these keys, None for a missing one; `getter` is the itemgetter for all of them."""
    try:
        return getter(table)
    except KeyError:
        return map(table.get, keys)
