"""Open what the store's folders hold: single records and books, either of which a user may have planted.

A folder holds single records, `JOB.RESTART.NODE.json`, as nodes write them, and books, `*.jsonl`, which the
collector makes of them: one record a line, only ever appended to.
"""

from __future__ import annotations

import os
import re
from typing import BinaryIO, Iterator, NamedTuple, Optional, Tuple

from slurm_gpumem.files import PlainFile, check_plain, open_plain, read_plain
from slurm_gpumem.formats.job_record import MAX_BYTES

RECORD_NAME = re.compile(r"([0-9]{1,12})\.([0-9]{1,6})\.(.+)\.json")
"""Job, restarts and node."""


class Book(NamedTuple):
    """An open book."""

    file: BinaryIO
    about: os.stat_result
    writer: Optional[int]
    """Who wrote it, unless that is root or ourselves."""


def read_record_file(path: str) -> Tuple[bytes, Optional[int]]:
    """A record's bytes, and who wrote them unless that is root or ourselves; OSError when there are none."""
    return as_written(read_plain(path, most_bytes=MAX_BYTES))


def as_written(found: PlainFile) -> Tuple[bytes, Optional[int]]:
    """A file's bytes, and who wrote them unless that is root or ourselves."""
    return found.data, _writer(found.owner_uid)


def open_book(path: str) -> Book:
    """A book to be read from wherever one likes; OSError when it cannot be, or is no plain file."""
    handle = open_plain(path)
    try:
        about = check_plain(handle)
    except OSError:
        os.close(handle)
        raise
    return Book(open(handle, "rb"), about, _writer(about.st_uid))


def complete_lines(book: BinaryIO) -> Iterator[bytes]:
    """The lines from where it stands, too long ones in parts; not a last one that is still being written."""
    for line in iter(lambda: book.readline(MAX_BYTES + 2), b""):
        if not line.endswith(b"\n") and len(line) <= MAX_BYTES:
            return
        yield line


def _writer(uid: int) -> Optional[int]:
    return None if uid in (0, os.geteuid()) else uid
