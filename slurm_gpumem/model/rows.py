"""Rows while a parser still works on them; `freeze` makes the layers that everybody else sees."""

from __future__ import annotations

from typing import List, Optional, Tuple

from slurm_gpumem.model.types import UNKNOWN_KIND, Layer, Shape


class Row:
    """A `Layer` that can still change; the fields mean the same."""

    __slots__ = (
        "attributes",
        "called",
        "depth",
        "derived",
        "hidden",
        "inputs",
        "kernel",
        "kind",
        "leaf",
        "line",
        "name",
        "outputs",
        "params",
        "params_known",
        "repeated",
        "trainable",
    )

    def __init__(self, kind: str, line: int, depth: int = 0) -> None:
        self.kind = kind
        self.outputs: Tuple[Shape, ...] = ()
        self.inputs: Tuple[Shape, ...] = ()
        self.params = 0
        self.trainable = True
        self.depth = depth
        self.name = ""
        self.leaf = True
        self.repeated = False
        self.kernel: Optional[Shape] = None
        self.attributes: Tuple[Tuple[str, str], ...] = ()
        self.line = line
        self.hidden = False
        self.called = True
        self.derived: Tuple[str, ...] = ()
        self.params_known = True

    @property
    def unknown(self) -> bool:
        """Whether this is a line that could not be understood."""
        return self.kind == UNKNOWN_KIND

    def note(self, key: str, value: str) -> None:
        """Add an attribute."""
        self.attributes = (*self.attributes, (key, value))


def unknown_row(text: str, line: int, depth: int = 0) -> Row:
    """Keep a line of a table that could not be understood."""
    row = Row(UNKNOWN_KIND, line, depth)
    row.note("text", quote(text))
    return row


def quote(text: str, limit: int = 60) -> str:
    """Shorten a line for a message, without control characters."""
    start = text.strip()[: limit + 1]
    shown = start if start.isprintable() else "".join(c if c.isprintable() else "?" for c in start)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def freeze(rows: List[Row]) -> Tuple[Layer, ...]:
    """Turn finished rows into layers."""
    return tuple(
        # In the order of Layer's fields: keywords would double the cost of long summaries.
        Layer(
            row.kind,
            row.outputs,
            row.inputs,
            row.params,
            row.trainable,
            row.depth,
            row.name,
            row.leaf,
            row.repeated,
            row.kernel,
            row.attributes,
            row.line,
            row.hidden,
            row.called,
            row.derived,
            row.params_known,
        )
        for row in rows
    )
