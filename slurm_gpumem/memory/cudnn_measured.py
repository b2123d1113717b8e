"""Convolutions that were measured one by one, where they take another workspace than the trees say.

The trees of cudnn_workspace.py say for any convolution what cuDNN takes; now and then they are wrong. The
convolutions of usual models were measured at all usual batch sizes (`training/probe_powers.py`). This file
keeps what was measured where the trees were wrong, and from which to which batch size a convolution was
measured: there the trees are believed otherwise.

The file (columns.py) has the columns `known`, `least`, `most`, `wrong` and `units`. A convolution is known by
32 bits of a hash: in a hundred thousand strange ones, one or two are taken for a known one. `least` and
`most` are powers of two: the batch sizes.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Dict, Iterable, Mapping, Optional, Sequence, Tuple

from slurm_gpumem.data import data_path
from slurm_gpumem.memory.columns import read_as, to_bytes
from slurm_gpumem.model.trace_types import Convolution

FILE = "cudnn-measured.bin"
FORMAT = "gpumem-cudnn-measured/1"
UNIT = 512
"""Bytes; the allocator rounds to as much."""
_COLUMNS = {"known": "I", "least": "B", "most": "B", "wrong": "I", "units": "I"}


@dataclass(frozen=True)
class Measured:
    """What the file says; `known` and `wrong` are in order, the others beside them."""

    known: Sequence[int]
    least: Sequence[int]
    most: Sequence[int]
    wrong: Sequence[int]
    units: Sequence[int]

    def covers(self, convolution: Convolution, rows: int) -> bool:
        """Whether this power of two lies within those at which the convolution was measured.

        Those of usual models were measured at all powers; others, met by chance, at some, and are taken as
        measured between them too.
        """
        if rows < 1 or rows & (rows - 1):
            return False
        mark = zlib.crc32(_text(convolution).encode())
        at = bisect_left(self.known, mark)
        if at == len(self.known) or self.known[at] != mark:
            return False
        return self.least[at] <= rows.bit_length() - 1 <= self.most[at]

    def other_bytes(self, convolution: Convolution, rows: int) -> Optional[int]:
        """What was measured, where it is not what the trees say."""
        found = self._at(convolution, rows)
        if found is not None or rows < 2 or not rows & (rows - 1):
            return found
        # Between two batch sizes that the trees are wrong about, they are wrong too.
        low = 1 << (rows.bit_length() - 1)
        below, above = self._at(convolution, low), self._at(convolution, 2 * low)
        if below is None or above is None:
            return None
        return below + (above - below) * (rows - low) // low

    def _at(self, convolution: Convolution, rows: int) -> Optional[int]:
        mark = call_mark(convolution, rows)
        at = bisect_left(self.wrong, mark)
        return UNIT * self.units[at] if at < len(self.wrong) and self.wrong[at] == mark else None


def call_mark(convolution: Convolution, rows: int) -> int:
    """A call at a batch size in 32 bits."""
    return zlib.crc32(f"{convolution.call} {rows} {_text(convolution)}".encode())


@lru_cache(maxsize=4096)
def _text(c: Convolution) -> str:
    """The same for all calls and batch sizes; both types of 16 bits are nearly always treated alike."""
    sort = "half" if c.dtype in ("fp16", "bf16") else c.dtype
    sizes = (c.size, c.out_size, c.kernel, c.stride, c.padding, c.dilation)
    return f"{sort} {c.channels_last} {c.transposed} {c.channels} {c.outputs} {c.groups} {sizes}"


@lru_cache(maxsize=1)
def packaged() -> Measured:
    """The package's own."""
    return read_as(data_path("models", FILE), FORMAT, from_columns)


def make(known: Iterable[Tuple[Convolution, int]], wrong: Iterable[Tuple[Convolution, int, int]]) -> Measured:
    """From all calls that were measured, and from those with their bytes that the trees are wrong about."""
    powers: Dict[int, Tuple[int, int]] = {}
    for convolution, rows in known:
        if rows & (rows - 1) == 0:
            mark, power = zlib.crc32(_text(convolution).encode()), rows.bit_length() - 1
            least, most = powers.get(mark, (power, power))
            powers[mark] = min(least, power), max(most, power)
    units = {call_mark(convolution, rows): -(-taken // UNIT) for convolution, rows, taken in wrong}
    marks, wrongs = sorted(powers), sorted(units)
    return Measured(
        marks,
        [powers[mark][0] for mark in marks],
        [powers[mark][1] for mark in marks],
        wrongs,
        [units[mark] for mark in wrongs],
    )


def to_file(measured: Measured) -> bytes:
    """The file's content."""
    return to_bytes({"format": FORMAT}, [(code, getattr(measured, name)) for name, code in _COLUMNS.items()])


def from_columns(header: Mapping[str, Any], columns: Sequence[Sequence[int]]) -> Measured:
    """What a file says; ValueError where it is of another kind."""
    if header["format"] != FORMAT or len(columns) != len(_COLUMNS):
        raise ValueError("the format is another")
    measured = Measured(*columns)
    if not len(measured.known) == len(measured.least) == len(measured.most):
        raise ValueError("columns of known convolutions differ in length")
    if len(measured.wrong) != len(measured.units):
        raise ValueError("columns of workspaces differ in length")
    return measured
