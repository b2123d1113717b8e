"""Rows while a parser still works on them; `freeze` makes the layers that everybody else sees."""

from __future__ import annotations

from typing import List, Optional, Tuple

from slurm_gpumem.summaries.types import UNKNOWN_KIND, Layer, Shape
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
