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
from typing import Any, Callable, Dict, List, Sequence, Tuple, TypeVar, Union

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
