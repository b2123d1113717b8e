"""The index: its tables, and how a connection to it is opened.

One row of `job` is one record, that is one run of a user's job on one node. The user belongs to the key: a
cluster that starts to count again gives the number of one user's job to another's. Among the rows of a job
one is its head: it stands for the job in lists, and holds what is folded over the runs. Names are numbers of
the table `word`.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Tuple

from slurm_gpumem.accounting.index.rows import Run

VERSION = 11
"""Of the tables; an index of another version is rebuilt."""

WORDS = frozenset(
    ["cluster", "node", "user", "partition", "model", "recipe", "estimator", "gpu", "sharing", "own_state"]
)
"""Columns from the record that hold numbers of the table `word`."""
RUN_COLUMNS: Tuple[str, ...] = Run._fields
RUN_KEY = ("job_id", "restarts", "node", "cluster", "uid")
"""What names a run."""
PLACED = ("folder", "settled", "strangers")
"""Where its record lies, whether that may still change, and whether it met jobs whose records are not ours to
read: then the GPU's time cannot be split. In root's index nobody is a stranger."""
FOLDED = (
    "head",
    "first_start",
    "peak_mib",
    "records",
    "attempts",
    "ooms",
    "state",
    "judged",
    "error_pm",
    "redone",
)
"""Columns computed from all rows of a job; `error_pm` is |error| in thousandths, of jobs that are judged;
`redone`: a later run did its work again."""
JOINED = ("account", "job_name", "submit", "wait_s", "slurm_state", "joined")
"""Columns from Slurm's accounting."""
FIXED_WORDS = (
    "", "shared", "whole", "observed", "COMPLETED", "TIMEOUT", "RUNNING", "FAILED", "remembered", "REQUEUED"
)  # fmt: skip
"""Words that are compared with in SQL: their numbers are their places here, from 1."""
NONE_WORD, SHARED_WORD, WHOLE_WORD, OBSERVED_WORD = 1, 2, 3, 4
COMPLETED_WORD, TIMEOUT_WORD, RUNNING_WORD, FAILED_WORD, REMEMBERED_WORD, REQUEUED_WORD = 5, 6, 7, 8, 9, 10
_CACHE_KIB = 65_536
DIMENSIONS = ("user", "account", "model", "gpu", "partition", "day")

_REALS = frozenset(
    [
        "start",
        "end",
        "energy_j",
        "idle_energy_j",
        "idle_s",
        "alone_s",
        "cpus_mean",
        "sm_share",
        "submit",
        "wait_s",
        "used_s",
        "would_s",
        "first_start",
    ]
)
_TEXTS = frozenset(("rest", "devices", "job_name"))


def _column(name: str) -> str:
    kind = "REAL" if name in _REALS else "TEXT" if name in _TEXTS else "INTEGER"
    return f'"{name}" {kind}'


_OF_ALL = (*RUN_COLUMNS, *PLACED, *FOLDED, *JOINED)
_SUMMED = (
    "start", "end", "gpus", "user", "account", "model", "gpu", "partition", "day", "head", "judged",
    "state", "sharing", "estimator", "shards", "limit_mib", "gpu_mib", "own_peak_mib", "peak_mib",
    "estimate_mib", "request_mib", "error_pm", "ooms", "oom", "used_s", "would_s", "energy_j", "sm_share",
    "idle_energy_j", "idle_s", "alone_s", "guessed", "cpus", "cpus_mean", "redone", "wait_s",
    "strangers", "job_id",
)  # fmt: skip
"""What summaries read: first in the row, since SQLite steps through a row from its begin."""
ALL_COLUMNS: Tuple[str, ...] = (*_SUMMED, *(name for name in _OF_ALL if name not in _SUMMED))

TABLES = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE word (id INTEGER PRIMARY KEY, text TEXT UNIQUE NOT NULL);
CREATE TABLE device (id INTEGER PRIMARY KEY, node TEXT, uuid TEXT, number INTEGER, name TEXT,
    memory_mib INTEGER, longest_s REAL DEFAULT 0, UNIQUE (node, uuid));
CREATE TABLE folder (id INTEGER PRIMARY KEY, path TEXT UNIQUE, owner INTEGER, stamp INTEGER,
    looked REAL, took REAL);
CREATE TABLE book (path TEXT PRIMARY KEY, inode INTEGER, read INTEGER, grown REAL) WITHOUT ROWID;
CREATE TABLE bad (path TEXT PRIMARY KEY, reason TEXT, count INTEGER) WITHOUT ROWID;
CREATE TABLE job (id INTEGER PRIMARY KEY, {", ".join(map(_column, ALL_COLUMNS))});
CREATE TABLE stay (device INTEGER, start REAL, run INTEGER, end REAL, used REAL,
    PRIMARY KEY (device, start, run)) WITHOUT ROWID;
CREATE UNIQUE INDEX job_run ON job ({", ".join(RUN_KEY)});
"""

UNJOINED = "joined IS NULL AND head = 1"
"""Rows that Slurm's accounting has not been joined with."""

INDEXES = f"""
CREATE INDEX IF NOT EXISTS job_unsettled ON job (id) WHERE settled = 0;
CREATE INDEX IF NOT EXISTS job_start ON job (start);
CREATE INDEX IF NOT EXISTS job_user ON job (user, start);
CREATE INDEX IF NOT EXISTS job_remember ON job (recipe) WHERE judged = 1;
CREATE INDEX IF NOT EXISTS job_array ON job (array_job) WHERE array_job IS NOT NULL;
CREATE INDEX IF NOT EXISTS job_unjoined ON job (start) WHERE {UNJOINED};
"""
"""Made after the first filling, which is quicker so."""

ERRORS = "".join(
    f"CREATE INDEX IF NOT EXISTS error_{name} ON job ({name}, error_pm) WHERE judged = 1;\n"
    for name in DIMENSIONS
)
"""Medians by group are read off these in order, without sorting."""


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection in autocommit mode: transactions are begun by hand. Readers wait for writers a while."""
    if read_only:
        return sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=10, isolation_level=None)
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    # No write-ahead log: readers who may not write here could not read it, and network disks cannot hold it.
    connection.execute("PRAGMA journal_mode = TRUNCATE")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    return connection


def create(path: Path) -> sqlite3.Connection:
    """A new, empty index, its owner's alone; to be filled and then moved to its place.

    Nothing is saved from a crash in the middle: whoever finds no index makes a new one.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    connection = sqlite3.connect(path, isolation_level=None)
    for setting in (
        "page_size = 8192",
        "journal_mode = OFF",
        "synchronous = OFF",
        f"cache_size = -{_CACHE_KIB}",
    ):
        connection.execute(f"PRAGMA {setting}")
    connection.executescript(f"BEGIN;{TABLES}COMMIT;")
    connection.executemany("INSERT INTO word (text) VALUES (?)", [(word,) for word in FIXED_WORDS])
    connection.execute(f"PRAGMA user_version = {VERSION}")
    return connection


def is_current(connection: sqlite3.Connection) -> bool:
    """Whether this is an index that we understand."""
    found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return found == VERSION
