"""Columns of numbers in JSON files that must be read quickly: bytes, little-endian, in base64.

Reading hundred thousands of numbers as text would take longer than an estimate.
"""

from __future__ import annotations

import sys
from array import array
from base64 import b64decode, b64encode
from typing import Any, Sequence


def pack(code: str, column: Sequence[float]) -> str:
    """The numbers of one column; `code` is array's."""
    return b64encode(_little(array(code, column))).decode()


def unpack(code: str, column: str) -> Sequence[Any]:
    """The numbers again."""
    found = array(code, b64decode(column))
    return array(code, _little(found)) if sys.byteorder == "big" else found


def _little(column: array[Any]) -> bytes:
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()
