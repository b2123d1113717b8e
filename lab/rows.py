"""Rows of JSON, one a line, whatever packs their file."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path
from typing import Any, Dict, Iterator, TextIO

from slurm_gpumem.errors import UsageError

Row = Dict[str, Any]


def open_text(path: Path) -> TextIO:
    """The file's text: .gz, .xz or plain."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt")
    return lzma.open(path, "rt") if path.suffix == ".xz" else open(path, encoding="utf-8")


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file; UsageError says what is wrong with it."""
    try:
        with open_text(path) as file:
            for number, line in enumerate(file, 1):
                try:
                    yield json.loads(line)
                except ValueError:
                    raise UsageError(f"{path}: line {number} is not JSON") from None
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None


def rows_in(folder: Path, prefix: str) -> Iterator[Row]:
    """The rows of a folder's files whose names begin with `prefix`, in the order of their names."""
    for path in sorted(folder.glob(f"{prefix}*.jsonl*")):
        yield from read_rows(path)
