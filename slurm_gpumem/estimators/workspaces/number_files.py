"""Files of many numbers that are read at every estimate: one line of JSON, then columns of numbers as bytes.

Reading hundreds of thousands of numbers as text would take longer than an estimate. The line is a table with
`columns`, a list of [type code of `array`, count], and `crc32` of the bytes that follow:
little-endian, column after column.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from array import array
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple, TypeVar, Union

from slurm_gpumem.errors import ConfigError

T = TypeVar("T")


def read_columns(path: Union[str, os.PathLike[str]]) -> Tuple[Dict[str, Any], List[Sequence[Any]]]:
    """A file's header and columns; OSError or ValueError if it is not such a file."""
    with open(path, "rb") as file:
        data = file.read()
    begin = data.index(b"\n") + 1
    header, rest = json.loads(data[:begin]), memoryview(data)[begin:]
    if zlib.crc32(rest) != header["crc32"]:
        raise ValueError("it is damaged")
    columns: List[Sequence[Any]] = []
    at = 0
    for code, count in header["columns"]:
        column = array(code)
        end = at + column.itemsize * count
        column.frombytes(rest[at:end])
        columns.append(little_endian(column))
        at = end
    return header, columns


def read_as(path: str, sort: str, make: Callable[[Dict[str, Any], List[Sequence[Any]]], T]) -> T:
    """The result of `make` for a file of the package; ConfigError names one that is missing or damaged."""
    try:
        return make(*read_columns(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: cannot be read as {sort}: {error}; install slurm-gpumem again") from None


def little_endian(column: array[Any]) -> array[Any]:
    """The column with its bytes as a file has them, or the other way round; changed in place."""
    if sys.byteorder == "big":
        column.byteswap()
    return column


# -- Decision trees: three columns of numbers each, node by node

COLUMNS = ("b", "f", "H")
"""Type codes of a tree's columns in a file."""
BEYOND = 65535
"""Used instead of a leaf's bytes beyond its sum, which are fewer: a separate tree predicts them."""


class Tree(NamedTuple):
    """One decision tree; a node without a feature is a leaf."""

    features: Sequence[int]
    """Index of the feature that a node tests; -1 - base for a leaf."""
    thresholds: Sequence[float]
    """Values up to this go left; for a leaf the multiple of its base."""
    rights: Sequence[int]
    """The right child of a node (the left one is the next node); for a leaf the bytes beyond, or BEYOND."""

    def bytes(self, values: Sequence[float], bases: Sequence[float], beyond: Tree) -> float:
        """The leaf's answer for these values; `beyond` predicts partial sums over the batch."""
        node = self.leaf(values)
        more: float = self.rights[node]
        if more == BEYOND:
            more = beyond.thresholds[beyond.leaf(values)]
        return self.thresholds[node] * bases[-1 - self.features[node]] + more

    def leaf(self, values: Sequence[float]) -> int:
        """The leaf that these values lead to."""
        features, thresholds, rights = self.features, self.thresholds, self.rights
        node, feature = 0, features[0]
        while feature >= 0:
            node = node + 1 if values[feature] <= thresholds[node] else rights[node]
            feature = features[node]
        return node


def trees_of(columns: Sequence[Sequence[Any]]) -> List[Tree]:
    """The trees of a file's columns, which come one after the other."""
    return [Tree(*columns[at : at + len(COLUMNS)]) for at in range(0, len(columns), len(COLUMNS))]
