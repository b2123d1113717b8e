"""Bring the index up to date with the records in the store's folders."""

from __future__ import annotations

import gc
import os
import sqlite3
import time
from collections import deque
from itertools import chain, islice, repeat
from typing import Callable, Deque, Iterable, Iterator, List, Optional, Tuple, Union

from slurm_gpumem.accounting.gather.record_files import complete_lines, open_book
from slurm_gpumem.accounting.gather.scan import FolderChanges, Scanner
from slurm_gpumem.accounting.index.index import IndexWriter
from slurm_gpumem.accounting.index.rows import row_of
from slurm_gpumem.accounting.index.schema import Row
from slurm_gpumem.files import open_plain, read_opened
from slurm_gpumem.formats.job_record import MAX_BYTES, BadRecordError, JobRecord, parse_job_record

Progress = Callable[[int, int], None]
"""(done, in all): called now and then."""

Loaded = Union[JobRecord, str]
"""A record, or why there is none; "" when the file is another's to read, or gone."""
Found = Tuple[str, Loaded]
"""The path of a file or book, and what was read there."""

_SETTLED_AFTER_S = 600.0
"""Its state and its faults become known within a minute after a job's end; then its record stays as it is."""
_BATCH = 400
_AHEAD = 100
"""This many files are opened, and requested from the disk, while as many before them are being read."""
_BYTES_A_RECORD = 1500
"""About; only the progress bar uses it."""


def refresh(
    connection: sqlite3.Connection,
    folders: Iterable[str],
    *,
    shard_mib: int,
    only_uid: Optional[int] = None,
    progress: Optional[Progress] = None,
    force: bool = False,
) -> int:
    """Read what is new, in one transaction; the number of records read. `only_uid`: of that user's jobs."""
    connection.execute("BEGIN IMMEDIATE")
    collecting = gc.isenabled()
    gc.disable()  # millions of short-lived rows, none of them in a cycle
    try:
        quiet: Progress = lambda done, total: None  # noqa: E731
        count = _refresh(connection, folders, shard_mib, only_uid, progress or quiet, force)
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('indexed_at', ?)", (str(time.time()),))
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    finally:
        if collecting:
            gc.enable()
    connection.execute("COMMIT")
    return count


def _refresh(
    db: sqlite3.Connection,
    folders: Iterable[str],
    shard_mib: int,
    only_uid: Optional[int],
    progress: Progress,
    force: bool,
) -> int:
    changed = Scanner(db, force=force).scan(folders)
    total = sum(len(changes.names) for changes in changed)
    total += (
        sum(_unread(db, f"{changes.path}/{name}") for changes in changed for name in changes.books)
        // _BYTES_A_RECORD
    )
    writer, records, seen, late = IndexWriter(db), 0, 0, time.time() - _SETTLED_AFTER_S
    met: List[Row] = []
    """Of one user's runs, those that met other jobs."""
    progress(0, total)
    for changes in changed:
        found = chain(_read_files(db, changes), _read_books(db, changes))
        for batch in iter(lambda: list(islice(found, _BATCH)), []):  # noqa: B023
            rows = [
                row_of(one, shard_mib=shard_mib, folder=changes.number, settled_before=late)
                for _, one in batch
                # Without access lists a whole group can read a record; whose job it is still counts.
                if isinstance(one, JobRecord) and only_uid in (None, one.uid)
            ]
            writer.put(rows)
            met += (row for row in rows if row.met and only_uid is not None)
            db.executemany(
                "INSERT INTO bad VALUES (?, ?, 1) ON CONFLICT (path) DO UPDATE SET count = count + 1",
                [(path, why) for path, why in batch if why and isinstance(why, str)],
            )
            records, seen = records + len(rows), seen + len(batch)
            progress(min(seen, total), total)
    writer.mark_strangers(met)
    writer.finish()
    progress(total, total)
    return records


def _read_files(db: sqlite3.Connection, changes: FolderChanges) -> Iterator[Found]:
    """The records of single files.

    Small files that lie on a disk are waited for one by one unless it is asked for many at once.
    """
    bad = {path for (path,) in db.execute("SELECT path FROM bad")}
    opened: Deque[Tuple[str, Union[int, str]]] = deque()
    paths = (f"{changes.path}/{name}" for name in changes.names)
    try:
        for path in chain(paths, repeat("", _AHEAD)):
            if path in bad:
                db.execute("DELETE FROM bad WHERE path = ?", (path,))
            opened.append((path, _open(path) if path else ""))
            if len(opened) > _AHEAD:
                first, handle = opened.popleft()
                yield first, _load(handle, changes.owner) if isinstance(handle, int) else handle
    finally:
        for _, handle in opened:
            if isinstance(handle, int):
                os.close(handle)


def _open(path: str) -> Union[int, str]:
    """An open file that the disk has been asked for; or why there is none."""
    try:
        handle = open_plain(path)
    except (FileNotFoundError, PermissionError):
        return ""
    except OSError as error:
        return error.strerror or "cannot be read"
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_WILLNEED)
    except OSError:
        pass  # no plain file: that is found out when it is read
    return handle


def _load(handle: int, owner: int) -> Loaded:
    try:
        return _parse(read_opened(handle, most_bytes=MAX_BYTES, owners=(owner,)))
    except OSError as error:
        return error.strerror or "cannot be read"


def _parse(data: bytes) -> Loaded:
    try:
        return parse_job_record(data)
    except BadRecordError as error:
        return str(error)


def _unread(db: sqlite3.Connection, path: str) -> int:
    """Bytes of a book that were not read before."""
    try:
        about = os.stat(path, follow_symlinks=False)
    except OSError:
        return 0
    return about.st_size - _read_before(db, path, about)


def _read_before(db: sqlite3.Connection, path: str, about: os.stat_result) -> int:
    known = db.execute("SELECT inode, read FROM book WHERE path = ?", (path,)).fetchone()
    return int(known[1]) if known and known[0] == about.st_ino and known[1] <= about.st_size else 0


def _read_books(db: sqlite3.Connection, changes: FolderChanges) -> Iterator[Found]:
    """Their lines behind those that were read before; a last line without its end waits for the next time."""
    for path in (f"{changes.path}/{name}" for name in changes.books):
        try:
            file, about = open_book(path, changes.owner)
        except (FileNotFoundError, PermissionError):
            continue  # gone since, or another user's to read
        except OSError as error:
            db.execute("DELETE FROM bad WHERE path = ?", (path,))
            yield path, error.strerror or "cannot be read"
            continue
        with file:
            read = _read_before(db, path, about)
            file.seek(read)
            for line in complete_lines(file):
                read += len(line)
                yield path, _parse(line)
        db.execute(
            "INSERT OR REPLACE INTO book VALUES (?, ?, ?, ?)", (path, about.st_ino, read, about.st_mtime)
        )
