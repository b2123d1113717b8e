"""Write the files of workspaces that estimates read: see `estimators.workspaces`."""

from __future__ import annotations

import json
import zlib
from array import array
from typing import Any, Dict, Iterable, Mapping, Sequence, Tuple

from slurm_gpumem.estimators.workspaces.columns import little_endian
from slurm_gpumem.estimators.workspaces.measured_calls import (
    COLUMNS,
    FORMAT,
    UNIT,
    Measured,
    call_mark,
    convolution_mark,
)
from slurm_gpumem.summaries.trace_types import CALLS, Convolution

LARGEST_POWER = 15

Column = Tuple[str, Sequence[float]]
"""Array's code, and the numbers."""


def to_bytes(header: Mapping[str, Any], columns: Sequence[Column]) -> bytes:
    """A file of columns."""
    packed = b"".join(little_endian(array(code, numbers)).tobytes() for code, numbers in columns)
    listed = [[code, len(numbers)] for code, numbers in columns]
    line = {**header, "columns": listed, "crc32": zlib.crc32(packed)}
    return json.dumps(line, separators=(",", ":")).encode() + b"\n" + packed


def make_measured(
    known: Iterable[Tuple[Convolution, int]], other: Iterable[Tuple[Convolution, int, int]]
) -> Measured:
    """From all calls that were measured, and from those whose bytes are to be kept."""
    measured: Dict[int, Dict[str, int]] = {}
    for convolution, rows in known:
        if rows & (rows - 1) == 0 and rows <= 1 << LARGEST_POWER:
            calls = measured.setdefault(convolution_mark(convolution), {})
            calls[convolution.call] = calls.get(convolution.call, 0) | rows
    powers = {
        mark: calls["forward"] & calls["input"] & calls["weight"]
        for mark, calls in measured.items()
        if len(calls) == len(CALLS)
    }
    units = {call_mark(convolution, rows): -(-taken // UNIT) for convolution, rows, taken in other}
    marks, kept = sorted(mark for mark in powers if powers[mark]), sorted(units)
    return Measured(marks, [powers[mark] for mark in marks], kept, [units[mark] for mark in kept])


def measured_bytes(measured: Measured) -> bytes:
    """The file of calls that were measured one by one."""
    return to_bytes({"format": FORMAT}, [(code, getattr(measured, name)) for name, code in COLUMNS.items()])
