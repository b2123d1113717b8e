"""Write the file of workspaces that estimates read: see `estimators.workspaces`."""

from __future__ import annotations

import json
import zlib
from array import array
from typing import Any, Mapping, Sequence, Tuple

from slurm_gpumem.estimators.workspaces.columns import little_endian

Column = Tuple[str, Sequence[float]]
"""Array's code, and the numbers."""


def to_bytes(header: Mapping[str, Any], columns: Sequence[Column]) -> bytes:
    """A file of columns."""
    packed = b"".join(little_endian(array(code, numbers)).tobytes() for code, numbers in columns)
    listed = [[code, len(numbers)] for code, numbers in columns]
    line = {**header, "columns": listed, "crc32": zlib.crc32(packed)}
    return json.dumps(line, separators=(",", ":")).encode() + b"\n" + packed
