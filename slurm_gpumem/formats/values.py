"""Values out of files that anybody may have written: of the right type and within bounds, or not known.

A first index of the accounting reads a million records: hence `type(x) is`, and the cache.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Mapping, Optional, Sequence, Tuple

MOST_TEXT, MOST_NOTE = 64, 200
"""Longest name and longest note, in characters."""
MOST_ITEMS = 16
"""Longest list of texts, GPUs or events."""
MOST_WHOLE, MOST_MIB, MOST_TIME, MOST_AMOUNT, MOST_RATIO = 1 << 40, 1 << 31, 1e11, 1e15, 1.5
"""Numbers are below these; a measured part of 1 may be a little over."""


@lru_cache(maxsize=16_384)
def clean_name(text: str) -> str:
    """A name made storable; the same names come again and again, and the cache is quicker than a look."""
    if len(text) > MOST_TEXT or not text.isascii() or not text.isprintable():
        return clean(text)[:MOST_TEXT]
    return text


def clean(text: str) -> str:
    """Text that JSON and SQLite can hold, without control characters; a printer makes it safe to show."""
    return "".join("?" if letter < " " else letter for letter in text).encode("utf-8", "replace").decode()


def name(value: Any) -> str:
    """A name; "" for what is none."""
    return clean_name(value) if type(value) is str else ""


def whole(value: Any) -> Optional[int]:
    """A whole number from 0 on; a bool is none."""
    return value if type(value) is int and 0 <= value < MOST_WHOLE else None


def amount(value: Any) -> Optional[float]:
    """A finite number from 0 on; json.loads lets NaN and Infinity through."""
    return value if (type(value) is float or type(value) is int) and 0 <= value < MOST_AMOUNT else None


def moment(value: Any) -> Optional[float]:
    """A Unix time."""
    return float(value) if (type(value) is float or type(value) is int) and 0 < value < MOST_TIME else None


def text_list(value: Any, longest: int = MOST_TEXT) -> Tuple[str, ...]:
    """The texts of a list."""
    if type(value) is not list:
        return ()
    return tuple([clean(text)[:longest] for text in value if type(text) is str][:MOST_ITEMS])


def whole_list(value: Any, most: int) -> Tuple[int, ...]:
    """The whole numbers of a list, `most` of them at most."""
    if type(value) is not list:
        return ()
    return tuple([item for item in value[:most] if type(item) is int and 0 <= item < MOST_WHOLE])


def values_of(table: Mapping[str, Any], getter: Callable[..., Any], keys: Sequence[str]) -> Tuple[Any, ...]:
    """The values of these keys, None for a missing one; `getter` is the itemgetter for all of them."""
    try:
        found: Tuple[Any, ...] = getter(table)
    except KeyError:
        return tuple(map(table.get, keys))
    return found
