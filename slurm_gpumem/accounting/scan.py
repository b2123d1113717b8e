"""What is new in the store's folders, found without opening a file.

A folder whose time has not changed has nothing new; a record of a job that ended a while ago does not change
any more; a scan that took long is not repeated soon.
"""

from __future__ import annotations

import os
import sqlite3
import time
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from slurm_gpumem.accounting.record_files import RECORD_NAME
from slurm_gpumem.formats.job_record import record_name

_GRAIN_NS = 2_000_000_000
"""A folder's time may stand still for changes within the clock's own grain."""
_BOOK_QUIET_S = 40 * 86_400.0
"""A book is written for a month; one that has been still for longer is not checked."""
_REST_TIMES = 20.0
"""A scan that took a second is not repeated within this many seconds."""
_FEW = 2000


class FolderChanges(NamedTuple):
    """What is to be read in one folder."""

    path: str
    number: int
    """In the table of folders."""
    names: Sequence[str]
    """Records that are new or may have changed."""
    books: Sequence[str]


class Scanner:
    """Scans folders and remembers in the index when it did."""

    def __init__(self, connection: sqlite3.Connection, *, force: bool = False) -> None:
        self._db = connection
        self._force = force
        self._known: Optional[Set[int]] = None
        self._nodes: Dict[str, int] = {}

    def scan(self, folders: Iterable[str]) -> List[FolderChanges]:
        """What is new in these folders and in those one level below them."""
        changes = []
        for folder in dict.fromkeys(folders):
            changes.append(self._scan_folder(folder, below=True))
            prefix = folder.rstrip("/") + "/"
            rows = self._db.execute(
                "SELECT path FROM folder WHERE path > ? AND path < ?", (prefix, prefix[:-1] + "0")
            )
            for (path,) in rows.fetchall():
                changes.append(self._scan_folder(path, below=False))
        return [found for found in changes if found.names or found.books]

    def _scan_folder(self, path: str, *, below: bool) -> FolderChanges:
        self._db.execute("INSERT OR IGNORE INTO folder (path) VALUES (?)", (path,))
        number, stamp, looked, took = self._db.execute(
            "SELECT id, stamp, coalesce(looked, 0), coalesce(took, 0) FROM folder WHERE path = ?", (path,)
        ).fetchone()
        unsettled = self._unsettled(number)
        try:
            now = os.stat(path).st_mtime_ns
        except OSError:
            return FolderChanges(path, number, (), ())
        rested = time.time() - looked > _REST_TIMES * took or self._force
        if now == stamp or not rested:
            return FolderChanges(path, number, unsettled, self._open_books(path))
        began = time.monotonic()
        names, books, folders = _entries(path)
        if below:
            self._db.executemany(
                "INSERT OR IGNORE INTO folder (path) VALUES (?)", [(name,) for name in folders]
            )
        fresh = [*unsettled, *self._unknown(names, frozenset(unsettled))]
        # A change in the clock's last grain could be missed: then scan again next time.
        settled = time.time_ns() - now > _GRAIN_NS
        self._db.execute(
            "UPDATE folder SET stamp = ?, looked = ?, took = ? WHERE id = ?",
            (now if settled else None, time.time(), time.monotonic() - began, number),
        )
        return FolderChanges(path, number, fresh, sorted({*books, *self._open_books(path)}))

    def _unsettled(self, folder: int) -> List[str]:
        rows = self._db.execute(
            "SELECT job_id, restarts, word.text FROM job JOIN word ON word.id = job.node "
            "WHERE settled = 0 AND folder = ?",
            (folder,),
        )
        return [record_name(job_id, restarts, node) for job_id, restarts, node in rows]

    def _open_books(self, path: str) -> List[str]:
        since = time.time() - _BOOK_QUIET_S
        rows = self._db.execute(
            "SELECT path FROM book WHERE path > ? AND path < ? AND grown > ?", (path + "/", path + "0", since)
        )
        return [name for (found,) in rows if "/" not in (name := found[len(path) + 1 :])]

    def _unknown(self, names: Sequence[str], besides: frozenset[str]) -> List[str]:
        """Names whose records the index does not have; those that it has never change again."""
        if len(names) > _FEW and self._known is None:
            rows = self._db.execute("SELECT job_id, restarts, node FROM job")
            self._known = {_code(job_id, restarts, node) for job_id, restarts, node in rows}
            self._nodes = dict(self._db.execute("SELECT text, id FROM word"))
        found = []
        for name in names:
            match = RECORD_NAME.fullmatch(name)
            if match is None or name in besides:
                continue
            job_id, restarts, node = int(match[1]), int(match[2]), match[3]
            if self._known is not None:
                known = _code(job_id, restarts, self._nodes.get(node, 0)) in self._known
            else:
                known = self._is_known(job_id, restarts, node)
            if not known:
                found.append(name)
        # In order of the jobs: their files were made, and their rows come to lie, in about that order.
        found.sort(key=lambda name: int(name[: name.index(".")]))
        return found

    def _is_known(self, job_id: int, restarts: int, node: str) -> bool:
        return (
            self._db.execute(
                "SELECT 1 FROM job JOIN word ON word.id = job.node "
                "WHERE job_id = ? AND restarts = ? AND word.text = ?",
                (job_id, restarts, node),
            ).fetchone()
            is not None
        )


def _code(job_id: int, restarts: int, node: int) -> int:
    """A run in one number: a million of them take a third of the memory that tuples would."""
    return job_id << 52 | restarts << 32 | node


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
