"""Rows while a parser still works on them; `freeze` makes the layers that everybody else sees."""

from __future__ import annotations

import re
from typing import Dict, List, Optional, Tuple

from slurm_gpumem.summaries.types import UNKNOWN_BATCH, UNKNOWN_KIND, Layer, Shape
from slurm_gpumem.text import clipped


class Row:
    """A `Layer` that can still change; the fields mean the same and have the same defaults."""

    kind: str
    outputs: Tuple[Shape, ...] = ()
    inputs: Tuple[Shape, ...] = ()
    params: int = 0
    trainable: bool = True
    depth: int = 0
    name: str = ""
    leaf: bool = True
    repeated: bool = False
    kernel: Optional[Shape] = None
    attributes: Tuple[Tuple[str, str], ...] = ()
    line: int = 0
    hidden: bool = False
    called: bool = True
    derived: Tuple[str, ...] = ()
    params_known: bool = True
    unknown = False
    """Whether this is a line that could not be understood."""

    def __init__(self, kind: str, line: int, depth: int = 0) -> None:
        self.kind = kind
        self.line = line
        self.depth = depth

    def note(self, key: str, value: str) -> None:
        """Add an attribute."""
        self.attributes = (*self.attributes, (key, value))


class _UnknownRow(Row):
    unknown = True


def unknown_row(text: str, line: int, depth: int = 0) -> Row:
    """Keep a line of a table that could not be understood."""
    row = _UnknownRow(UNKNOWN_KIND, line, depth)
    row.note("text", quote(text))
    return row


def quote(text: str, limit: int = 60) -> str:
    """Shorten a line for a message, without control characters."""
    return clipped(text.strip(), limit)


def freeze(rows: List[Row]) -> Tuple[Layer, ...]:
    """Turn finished rows into layers."""
    # Fields that a row has left alone have Layer's default.
    return tuple(Layer(**row.__dict__) for row in rows)


# The cells of a summary's table: counts such as "9,408" and shapes such as "[-1, 64, 112, 112]".

_INNERMOST = re.compile(r"[\[(]([^\[\]()]*)[\])]")
_SEPARATORS = str.maketrans("", "", ",_'’\u00a0\u202f\u2009")
# No tensor has more elements than this; longer numbers are damage, not sizes.
_MAX_DIGITS = 15

_OPEN = {"-1": UNKNOWN_BATCH, "None": UNKNOWN_BATCH, "?": UNKNOWN_BATCH}


def parse_count(text: str) -> Optional[int]:
    """Read "25,557,032"; None when it is no whole number."""
    digits = text.translate(_SEPARATORS)
    if digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS:
        return int(digits)
    return None


def parse_decimal(text: str) -> Optional[float]:
    """Read "1,234.56"; None when it is no such number."""
    whole, _, fraction = text.partition(".")
    if parse_count(whole) is None or (fraction and parse_count(fraction) is None):
        return None
    return float(f"{parse_count(whole)}.{fraction or 0}")


class ShapeReader:
    """Reads shapes; remembers what it has read, since a summary repeats few shapes often."""

    def __init__(self) -> None:
        self._seen: Dict[str, Optional[Tuple[Shape, ...]]] = {}

    def read(self, text: str) -> Optional[Tuple[Shape, ...]]:
        """Read "[1, 64]", "(None, 64)" or several of them; () for "--"; None when it is no shape."""
        try:
            return self._seen[text]
        except KeyError:
            shapes = self._seen[text] = _read_shapes(text)
            return shapes


def _read_shapes(text: str) -> Optional[Tuple[Shape, ...]]:
    if text in ("--", "-", "[]", "()"):
        return ()
    shapes = []
    for inner in _INNERMOST.findall(text):
        shape = _read_shape(inner)
        if shape is None:
            return None
        if shape:
            shapes.append(shape)
    return tuple(shapes) or None


def _read_shape(inner: str) -> Optional[Shape]:
    sizes = []
    for part in inner.split(","):
        word = part.strip()
        if not word:
            continue
        if word in _OPEN:
            sizes.append(UNKNOWN_BATCH)
        elif word.isascii() and word.isdigit() and len(word) <= _MAX_DIGITS:
            sizes.append(int(word))
        else:
            return None
    return tuple(sizes)
