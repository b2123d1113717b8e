"""Convolutions that were measured one by one, if they need another workspace than the trees predict.

The trees of convolutions.py predict cuDNN's workspace for any convolution; sometimes they are wrong. The
convolutions of common models were measured at all common batch sizes (lab/data/ground-truth). The data
file keeps the measurements where the trees were wrong, and the powers of two at which a convolution was
measured: for other calls at these powers the trees are right. If cuDNN changes its choice between two powers
of two, it also keeps the measurement halfway.

The file (columns.py) has the columns `known`, `powers`, `calls` and `units`. Convolutions and calls are
identified by 64 bits of a hash: an estimate looks up thousands of calls and must not confuse any two.
Bit n of `powers` is the batch size 2 ** n.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Mapping, Optional, Sequence, Tuple

from slurm_gpumem.data import data_path
from slurm_gpumem.estimators.workspaces.columns import read_as
from slurm_gpumem.summaries.trace_types import Convolution

FILE = "cudnn-measured.bin"
FORMAT = "gpumem-cudnn-measured/3"
UNIT = 512
"""Bytes; the allocator rounds to multiples of this."""
COLUMNS = {"known": "Q", "powers": "H", "calls": "Q", "units": "I"}


@dataclass(frozen=True)
class Measured:
    """The file's content; `known` and `calls` are sorted, the others parallel to them."""

    known: Sequence[int]
    powers: Sequence[int]
    calls: Sequence[int]
    units: Sequence[int]

    def covers(self, convolution: Convolution, rows: int) -> bool:
        """Whether this is a power of two at which all calls of the convolution were measured."""
        if rows < 1 or rows & (rows - 1):
            return False
        mark = convolution_mark(convolution)
        at = bisect_left(self.known, mark)
        return at < len(self.known) and self.known[at] == mark and bool(self.powers[at] & rows)

    def bytes_at(self, convolution: Convolution, rows: int, call: str = "") -> Optional[int]:
        """The measurement at exactly this batch size, if the trees predict otherwise; `call`: of another."""
        mark = call_mark(convolution, rows, call)
        at = bisect_left(self.calls, mark)
        return UNIT * self.units[at] if at < len(self.calls) and self.calls[at] == mark else None

    def neighbours(self, convolution: Convolution, rows: int, call: str = "") -> Optional[Tuple[int, int]]:
        """The nearest measured batch sizes below and above; None for a power of two."""
        if rows < 3 or not rows & (rows - 1):
            return None
        low = 1 << (rows.bit_length() - 1)
        if not (self.covers(convolution, low) and self.covers(convolution, 2 * low)):
            return None
        middle = halfway(low)
        if self.bytes_at(convolution, middle, call) is None:
            return low, 2 * low
        return (low, middle) if rows < middle else (middle, 2 * low)


def halfway(power: int) -> int:
    """The batch size between a power of two and the next at which calls are also measured if necessary."""
    return power * 3 // 2


@lru_cache(maxsize=4096)
def convolution_mark(convolution: Convolution) -> int:
    """A convolution in 64 bits, the same for all its calls and batch sizes."""
    return _mark(_text(convolution))


def call_mark(convolution: Convolution, rows: int, call: str = "") -> int:
    """A hash of a call at a batch size in 64 bits; `call`: another one than the convolution's own."""
    return _mark(f"{call or convolution.call} {rows} {_text(convolution)}")


def _mark(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


@lru_cache(maxsize=4096)
def _text(c: Convolution) -> str:
    """The same for all calls and batch sizes."""
    sizes = (c.size, c.out_size, c.kernel, c.stride, c.padding, c.dilation)
    return f"{c.dtype} {c.channels_last} {c.transposed} {c.channels} {c.outputs} {c.groups} {sizes}"


@lru_cache(maxsize=1)
def packaged() -> Measured:
    """The package's own file."""
    return read_as(data_path("models", FILE), FORMAT, from_columns)


def from_columns(header: Mapping[str, Any], columns: Sequence[Sequence[int]]) -> Measured:
    """The parsed content of a file; ValueError if it has another format."""
    if header["format"] != FORMAT or len(columns) != len(COLUMNS):
        raise ValueError("the format is another")
    measured = Measured(*columns)
    if len(measured.known) != len(measured.powers):
        raise ValueError("columns of known convolutions differ in length")
    if len(measured.calls) != len(measured.units):
        raise ValueError("columns of workspaces differ in length")
    return measured
