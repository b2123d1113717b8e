"""Open what the store's folders hold: single records and books. Only what root wrote counts.

A folder holds single records, `JOB.RESTART.NODE.json`, as nodes write them, and books, `*.jsonl`, which the
collector makes of them: one record a line, only ever appended to. Both are measurements of root's, so a file
of anybody else is refused, and so is every file in a folder that others may write to: there they could
rename, remove and link what is root's. Only where somebody runs a cluster of their own without root, and the
whole store is theirs, do they believe themselves.
"""

from __future__ import annotations

import os
import re
import stat
from typing import BinaryIO, Iterator, NamedTuple, Optional, Tuple

from slurm_gpumem.files import check_plain, open_plain, read_plain
from slurm_gpumem.formats.job_record import MAX_BYTES

RECORD_NAME = re.compile(r"([0-9]{1,12})\.([0-9]{1,6})\.(.+)\.json")
"""Job, restarts and node."""


class Book(NamedTuple):
    """An open book."""

    file: BinaryIO
    about: os.stat_result


class RecordFolder(NamedTuple):
    """A folder that may hold records."""

    path: str
    owner: int
    """Whose files in it count."""
    distrusted: str
    """Why nothing in it is believed; "" when it is."""


def read_record_file(path: str, owner: int) -> bytes:
    """A record's bytes; OSError when there are none of its folder's owner."""
    return read_plain(path, most_bytes=MAX_BYTES, owners=(owner,))


def open_book(path: str, owner: int) -> Book:
    """A book to be read from wherever one likes; OSError when there is none of its folder's owner."""
    handle = open_plain(path)
    try:
        about = check_plain(handle, (owner,))
    except OSError:
        os.close(handle)
        raise
    return Book(open(handle, "rb"), about)


def complete_lines(book: BinaryIO) -> Iterator[bytes]:
    """The lines from where it stands, too long ones in parts; not a last one that is still being written."""
    for line in iter(lambda: book.readline(MAX_BYTES + 2), b""):
        if not line.endswith(b"\n") and len(line) <= MAX_BYTES:
            return
        yield line


def why_distrusted(about: os.stat_result, top_owner: Optional[int] = None) -> str:
    """Why nothing in a folder is believed; "" when only root, or we ourselves, can write there.

    `top_owner` is whose the store is, for a folder in it: nobody else's folder counts there.
    """
    if not stat.S_ISDIR(about.st_mode):
        return "no folder"
    if about.st_uid not in ((0, os.geteuid()) if top_owner is None else (top_owner,)):
        return f"folder of user {about.st_uid}"
    # An access list that lets others write shows in the group's bits.
    return "folder that others may write to" if about.st_mode & 0o022 else ""


def record_folders(top: str) -> Iterator[RecordFolder]:
    """The folder and those one level below; none where it cannot be read. A site's own path may be a link."""
    try:
        found = os.stat(top)
        why = why_distrusted(found)
        below = () if why else _folders_in(top)
    except OSError:
        return
    yield RecordFolder(top, found.st_uid, why)
    for path, about in below:
        yield RecordFolder(path, found.st_uid, why_distrusted(about, found.st_uid))


def _folders_in(top: str) -> Tuple[Tuple[str, os.stat_result], ...]:
    with os.scandir(top) as entries:
        folders = [
            (entry.path, entry.stat(follow_symlinks=False))
            for entry in entries
            if entry.name[0] != "." and entry.is_dir(follow_symlinks=False)
        ]
    return tuple(sorted(folders))
