"""Bring the index up to date with the records in the store's folders."""

from __future__ import annotations

import gc
import os
import sqlite3
import time
from typing import Callable, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

from slurm_gpumem.accounting.gather.record_files import complete_lines, open_book
from slurm_gpumem.accounting.gather.scan import FolderChanges, Scanner
from slurm_gpumem.accounting.index.index import IndexWriter, PlacedRun
from slurm_gpumem.accounting.index.rows import Run, rest_of, run_from
from slurm_gpumem.files import open_plain, read_opened
from slurm_gpumem.formats.job_record import MAX_BYTES, BadRecordError, parse_job_record

Progress = Callable[[int, int], None]
"""(done, in all): called now and then."""

Loaded = Union[Run, str]
"""A run, or why there is none; "" when the file is another's to read, or gone."""

_SETTLED_AFTER_S = 600.0
"""Its state and its faults become known within a minute after a job's end; then its record stays as it is."""
_BATCH, _MANY = 400, 5000
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
    files = sum(len(changes.names) for changes in changed)
    in_books = (
        sum(_unread(db, f"{changes.path}/{name}") for changes in changed for name in changes.books)
        // _BYTES_A_RECORD
    )
    fresh: bool = db.execute("SELECT NOT EXISTS (SELECT 1 FROM job)").fetchone()[0] == 1
    total = files + in_books
    intake = _Intake(
        db, IndexWriter(db), only_uid, many=fresh or total > _MANY, total=total, progress=progress
    )
    for changes in changed:
        for names, loaded in _load_all(changes, shard_mib):
            intake.take_files(changes, names, loaded)
        for name in changes.books:
            _read_book(db, intake, changes, name, shard_mib)
    intake.finish()
    return intake.records


class _Intake:
    """Takes what was read and puts it into the index."""

    def __init__(
        self,
        db: sqlite3.Connection,
        index: IndexWriter,
        only_uid: Optional[int],
        *,
        many: bool,
        total: int,
        progress: Progress,
    ) -> None:
        self._db = db
        self._index = index
        self._only_uid = only_uid
        self._many = many
        self._total = total
        self._progress = progress
        self._seen = 0
        self._met: List[Run] = []
        """Of one user's runs, those that met other jobs."""
        self.records = 0
        progress(0, total)

    def take_files(self, changes: FolderChanges, names: Sequence[str], loaded: Sequence[Loaded]) -> None:
        """The records of single files."""
        self._take(changes.number, [run for run in loaded if isinstance(run, Run)])
        bad = [(f"{changes.path}/{name}", why) for name, why in zip(names, loaded) if isinstance(why, str)]
        for path, why in bad:
            if why:
                self._db.execute("INSERT OR REPLACE INTO bad VALUES (?, ?, 1)", (path, why))
        if len(bad) < len(names) and self._has_bad():
            good = [(f"{changes.path}/{name}",) for name, run in zip(names, loaded) if isinstance(run, Run)]
            self._db.executemany("DELETE FROM bad WHERE path = ?", good)
        self._step(len(names))

    def take_lines(self, folder: int, path: str, loaded: Sequence[Loaded]) -> None:
        """The records of a book's lines."""
        self._take(folder, [run for run in loaded if isinstance(run, Run)])
        for why in loaded:
            if isinstance(why, str):
                self._db.execute(
                    "INSERT INTO bad VALUES (?, ?, 1) ON CONFLICT (path) DO UPDATE SET count = count + 1",
                    (path, why),
                )
        self._step(len(loaded))

    def finish(self) -> None:
        """What follows from many rows is computed once, at the end."""
        self._index.mark_strangers(self._met)
        if self._many:
            self._index.compute_all()
        self._progress(self._total, self._total)

    def _take(self, folder: int, runs: Sequence[Run]) -> None:
        if self._only_uid is not None:
            # Without access lists a whole group can read a record; whose job it is still counts.
            runs = [run for run in runs if run.uid == self._only_uid]
            self._met += (run for run in runs if rest_of(run.rest).met)
        self.records += len(runs)
        late = time.time() - _SETTLED_AFTER_S
        placed = [PlacedRun(run, folder, run.end is not None and run.end < late) for run in runs]
        if self._many:
            self._index.put(placed)
        elif placed:
            self._index.put_few(placed)

    def _has_bad(self) -> bool:
        return bool(self._db.execute("SELECT EXISTS (SELECT 1 FROM bad)").fetchone()[0])

    def _step(self, count: int) -> None:
        self._seen += count
        self._progress(min(self._seen, self._total), self._total)


def _load_all(changes: FolderChanges, shard_mib: int) -> Iterator[Tuple[Sequence[str], List[Loaded]]]:
    """Read all files, in batches."""
    names = changes.names
    for at in range(0, len(names), _BATCH):
        batch = names[at : at + _BATCH]
        yield batch, _load_files(changes.path, changes.owner, batch, shard_mib)


def _load_files(folder: str, owner: int, names: Sequence[str], shard_mib: int) -> List[Loaded]:
    """The runs of some files of a folder that are its owner's.

    Small files that lie on a disk are waited for one by one unless it is asked for many at once.
    """
    loaded: List[Loaded] = []
    opened: List[Union[int, str]] = []
    try:
        for at in range(0, len(names) + _AHEAD, _AHEAD):
            before, opened = opened, [_open(f"{folder}/{name}") for name in names[at : at + _AHEAD]]
            loaded += [_load(item, owner, shard_mib) if isinstance(item, int) else item for item in before]
    finally:
        for handle in opened:
            if isinstance(handle, int):
                os.close(handle)
    return loaded


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


def _load(handle: int, owner: int, shard_mib: int) -> Loaded:
    try:
        data = read_opened(handle, most_bytes=MAX_BYTES, owners=(owner,))
        return run_from(parse_job_record(data), shard_mib=shard_mib)
    except BadRecordError as error:
        return str(error)
    except OSError as error:
        return error.strerror or "cannot be read"


# -- Books -----------------------------------------------------------------------------------------


def _unread(db: sqlite3.Connection, path: str) -> int:
    try:
        about = os.stat(path, follow_symlinks=False)
    except OSError:
        return 0
    known = db.execute("SELECT inode, read FROM book WHERE path = ?", (path,)).fetchone()
    return about.st_size - (known[1] if known and known[0] == about.st_ino else 0)


def _read_book(
    db: sqlite3.Connection, intake: _Intake, changes: FolderChanges, name: str, shard_mib: int
) -> None:
    """The lines behind those that were read before; a last line without its end is left for the next time."""
    folder, path = changes.number, f"{changes.path}/{name}"
    try:
        file, about = open_book(path, changes.owner)
    except (FileNotFoundError, PermissionError):
        return  # gone since, or another user's to read
    except OSError as error:
        db.execute("INSERT OR REPLACE INTO bad VALUES (?, ?, 1)", (path, error.strerror or "cannot be read"))
        return
    with file:
        known = db.execute("SELECT inode, read FROM book WHERE path = ?", (path,)).fetchone()
        read = known[1] if known and known[0] == about.st_ino and known[1] <= about.st_size else 0
        file.seek(read)
        batch: List[Loaded] = []
        for line in complete_lines(file):
            read += len(line)
            batch.append(_run_of_line(line, shard_mib))
            if len(batch) >= _BATCH:
                intake.take_lines(folder, path, batch)
                batch = []
        intake.take_lines(folder, path, batch)
    db.execute("INSERT OR REPLACE INTO book VALUES (?, ?, ?, ?)", (path, about.st_ino, read, about.st_mtime))


def _run_of_line(line: bytes, shard_mib: int) -> Loaded:
    try:
        return run_from(parse_job_record(line), shard_mib=shard_mib)
    except BadRecordError as error:
        return str(error)
