"""Bring the index up to date with the records in the store's folders."""

from __future__ import annotations

import gc
import os
import sqlite3
import time
from collections import deque
from itertools import chain, islice, repeat
from typing import (
    Callable,
    Deque,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from slurm_gpumem.accounting.index import IndexWriter
from slurm_gpumem.accounting.record_files import RECORD_NAME, complete_lines, open_book, why_distrusted
from slurm_gpumem.accounting.rows import row_of
from slurm_gpumem.accounting.schema import Row
from slurm_gpumem.files import open_plain, read_opened
from slurm_gpumem.formats.job_record import (
    MAX_BYTES,
    BadRecordError,
    JobRecord,
    parse_job_record,
    record_name,
)

# What is new in the store's folders, found without opening a file.
#
# A folder whose time has not changed has nothing new; a record of a job that ended a while ago does not
# change any more; a scan that took long is not repeated soon.


_GRAIN_NS = 2_000_000_000
"""A folder's time may stand still for changes within the clock's own grain."""
_BOOK_QUIET_S = 40 * 86_400.0
"""A book is written for a month; one that has been still for longer is not checked."""
_REST_TIMES = 20.0
"""A scan that took a second is not repeated within this many seconds."""
_SHORT_S = 0.5
"""One that took no longer than this is repeated whenever somebody asks."""


class FolderChanges(NamedTuple):
    """What is to be read in one folder."""

    path: str
    number: int
    """In the table of folders."""
    owner: int
    """Whose files in it count."""
    names: Sequence[str]
    """Records that are new or may have changed."""
    books: Sequence[str]


class Scanner:
    """Scans folders and remembers in the index when it did."""

    def __init__(self, connection: sqlite3.Connection, *, force: bool = False) -> None:
        self._db = connection
        self._force = force
        self._unsettled = self._read_unsettled()
        self._is_empty = connection.execute("SELECT 1 FROM job LIMIT 1").fetchone() is None

    def scan(self, folders: Iterable[str]) -> List[FolderChanges]:
        """What is new in these folders and in those one level below them."""
        changes = []
        for folder in dict.fromkeys(folders):
            top = self._scan_folder(folder)
            if top is None:
                continue
            changes.append(top)
            prefix = folder.rstrip("/") + "/"
            rows = self._db.execute(
                "SELECT path FROM folder WHERE path > ? AND path < ?", (prefix, prefix[:-1] + "0")
            )
            for (path,) in rows.fetchall():
                below = self._scan_folder(path, top.owner)
                changes += [] if below is None else [below]
        return [found for found in changes if found.names or found.books]

    def _scan_folder(self, path: str, top_owner: Optional[int] = None) -> Optional[FolderChanges]:
        """What is new there; None where nothing is believed. Without `top_owner` it is a top folder."""
        self._db.execute("INSERT OR IGNORE INTO folder (path) VALUES (?)", (path,))
        number, stamp, looked, took = self._db.execute(
            "SELECT id, stamp, coalesce(looked, 0), coalesce(took, 0) FROM folder WHERE path = ?", (path,)
        ).fetchone()
        unsettled = self._unsettled.get(number, [])
        try:
            # The site's own path may be a link; below it none was taken for a folder.
            about = os.stat(path, follow_symlinks=top_owner is None)
        except OSError:
            return None
        why = why_distrusted(about, top_owner)
        self._db.execute("DELETE FROM bad WHERE path = ?", (path,))
        if why:
            self._db.execute("INSERT INTO bad VALUES (?, ?, 1)", (path, why))
            return None
        now, owner = about.st_mtime_ns, about.st_uid
        # abs: a look in the future was before the clock was set back.
        rested = took <= _SHORT_S or abs(time.time() - looked) > _REST_TIMES * took or self._force
        if now == stamp or not rested:
            return FolderChanges(path, number, owner, unsettled, self._open_books(path))
        began = time.monotonic()
        names, books, folders = _entries(path)
        self._forget_bad(path, frozenset((*names, *books)))
        if top_owner is None:
            self._db.executemany(
                "INSERT OR IGNORE INTO folder (path) VALUES (?)", [(name,) for name in folders]
            )
        fresh = [*unsettled, *self._unknown(number, names, frozenset(unsettled))]
        # A change in the clock's last grain could be missed: then scan again next time.
        settled = time.time_ns() - now > _GRAIN_NS
        self._db.execute(
            "UPDATE folder SET owner = ?, stamp = ?, looked = ?, took = ? WHERE id = ?",
            (owner, now if settled else None, time.time(), time.monotonic() - began, number),
        )
        return FolderChanges(path, number, owner, fresh, sorted({*books, *self._open_books(path)}))

    def _forget_bad(self, path: str, present: frozenset[str]) -> None:
        """What could not be used and is gone now need not be looked for any more."""
        rows = self._db.execute("SELECT path FROM bad WHERE path > ? AND path < ?", (path + "/", path + "0"))
        names = [found[len(path) + 1 :] for (found,) in rows]
        gone = [(f"{path}/{name}",) for name in names if "/" not in name and name not in present]
        self._db.executemany("DELETE FROM bad WHERE path = ?", gone)

    def _read_unsettled(self) -> Dict[int, List[str]]:
        """By folder, the records that may still change: off their own small index, once for all folders."""
        rows = self._db.execute(
            "SELECT folder, job_id, restarts, word.text FROM job JOIN word ON word.id = job.node "
            "WHERE settled = 0"
        )
        found: Dict[int, Dict[str, None]] = {}
        for folder, job_id, restarts, node in rows:
            found.setdefault(folder, {})[record_name(job_id, restarts, node)] = None
        return {folder: list(names) for folder, names in found.items()}

    def _open_books(self, path: str) -> List[str]:
        since = time.time() - _BOOK_QUIET_S
        rows = self._db.execute(
            "SELECT path FROM book WHERE path > ? AND path < ? AND grown > ?", (path + "/", path + "0", since)
        )
        return [name for (found,) in rows if "/" not in (name := found[len(path) + 1 :])]

    def _unknown(self, folder: int, names: Sequence[str], besides: frozenset[str]) -> List[str]:
        """Names whose records the index does not have from this folder; those never change again.

        By the folder, for no name says whose job it is: of another folder it could be another user's.
        """
        found = []
        for name in names:
            match = RECORD_NAME.fullmatch(name)
            if match is None or name in besides:
                continue
            if self._is_empty or not self._is_known(int(match[1]), int(match[2]), match[3], folder):
                found.append(name)
        # In order of the jobs: their files were made, and their rows come to lie, in about that order.
        found.sort(key=lambda name: int(name[: name.index(".")]))
        return found

    def _is_known(self, job_id: int, restarts: int, node: str, folder: int) -> bool:
        return (
            self._db.execute(
                "SELECT 1 FROM job JOIN word ON word.id = job.node "
                "WHERE job_id = ? AND restarts = ? AND word.text = ? AND folder = ?",
                (job_id, restarts, node, folder),
            ).fetchone()
            is not None
        )


def _entries(path: str) -> Tuple[List[str], List[str], List[str]]:
    """Records, books and folders in a folder; nothing when it cannot be read."""
    names, books, folders = [], [], []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                name = entry.name
                if name.endswith(".json"):
                    names.append(name)
                elif name.endswith(".jsonl"):
                    books.append(name)
                elif name[0] != "." and entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    except OSError:
        return [], [], []
    return names, books, folders


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
