"""The index: what stands in a row of `job`, its tables, and how a connection to them is opened.

`Row` is the schema: the table is made from its fields, and rows are written and read by them.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path
from typing import Annotated, Callable, Dict, Iterable, NamedTuple, Optional, Tuple, get_type_hints

from slurm_gpumem.accounting.types import Device
from slurm_gpumem.config.accounting import AccountingConfig
from slurm_gpumem.errors import AccountingError
from slurm_gpumem.files import remove_dead_drafts, replaced

VERSION = 13
"""Of the tables; an index of another version is rebuilt."""

Word = Annotated[str, "word"]
"""A text that many rows share: in the table its number in the table `word`."""
Numbers = Tuple[int, ...]
Lines = Tuple[str, ...]
Devices = Tuple[Device, ...]
"""In the table their numbers in the table `device`."""


class Row(NamedTuple):
    """One job record, that is one run of a user's job on one node.

    Among the rows of a job one is its head: it stands for the job in lists, and holds what is folded over the
    runs. What has a default is not the record's.
    """

    # -- from the record
    job_id: int
    restarts: int
    start: float
    end: Optional[float]
    gpus: int
    day: int
    """The local day of its start, counted from 1970."""
    user: Word
    model: Word
    gpu: Word
    """The GPUs' type, in short."""
    partition: Word
    sharing: Word
    estimator: Word
    shards: Optional[int]
    limit_mib: Optional[int]
    gpu_mib: Optional[int]
    own_peak_mib: Optional[int]
    estimate_mib: Optional[int]
    request_mib: Optional[int]
    oom: bool
    used_s: Optional[float]
    """GPU-seconds; its part of them where others were there."""
    would_s: Optional[float]
    """GPU-seconds of a job that was only observed, had it shared by its request."""
    alone_s: Optional[float]
    """GPU-seconds that it would have taken without neighbours; None where that is not known."""
    guessed: Optional[bool]
    """Of a run that shared its GPU: whether that rests on predicted activity."""
    energy_j: Optional[float]
    idle_energy_j: Optional[float]
    """Its part of the energy while none of its GPU's jobs held memory."""
    idle_s: Optional[float]
    """GPU-seconds in which it held memory and the GPU did nothing."""
    sm_share: Optional[float]
    cpus: Optional[int]
    """CPUs that it held on this node."""
    cpus_mean: Optional[float]
    """CPUs that it kept busy, over all of its time."""
    judged: bool
    """Only such a job shows what it needed: others may have ended before their peak."""
    error_pm: Optional[int]
    """|error| of the estimate in thousandths, of jobs that are judged."""
    node: Word
    cluster: Word
    uid: int
    """The user belongs to the key: a cluster that starts to count again gives the number of one user's job to
    another's."""
    folder: int
    """Where its record lies."""
    settled: bool
    """Whether the record will not change any more."""
    own_state: Word
    fingerprint: Word
    batch: Optional[int]
    optimizer: Word
    precision: Word
    variant: Word
    verdict: Word
    why: Word
    """Of a run that recovery started: why the run before it ended."""
    exit_code: Optional[int]
    signal: Optional[int]
    samples: int
    mean_mib: Optional[int]
    gpu_sm: Optional[float]
    alone_by: Word
    """Where `alone_s` is known from."""
    alone_sm: Optional[float]
    """Its SM activity while it had its GPU to itself."""
    cpus_high: Optional[float]
    """CPUs that it kept busy at most in nearly all of its busy time."""
    slots: Optional[int]
    """Time slots that ended with a checkpoint, up to this run's end."""
    array_job: Optional[int]
    array_task: Optional[int]
    said: str
    """How much slower its owner was told it runs while sharing."""
    parts: str
    devices: Devices
    met: Numbers
    hints: Lines
    notes: Lines
    # -- folded
    head: bool = True
    state: Word = ""
    first_start: float = 0.0
    peak_mib: Optional[int] = None
    records: int = 1
    attempts: int = 1
    ooms: int = 0
    redone: bool = False
    """A later run did its work again."""
    strangers: bool = False
    """It met jobs whose records are not ours to read: then the GPU's time cannot be split. In root's index
    nobody is a stranger."""
    # -- from Slurm's accounting
    account: Word = ""
    job_name: str = ""
    submit: Optional[float] = None
    wait_s: Optional[float] = None
    slurm_state: Word = ""
    joined: Optional[bool] = None
    """False: Slurm does not know the job, and is not asked again."""
    summed_up: Optional[bool] = None
    """Whether a summary for jobstats was written into Slurm's accounting; None: not looked at yet."""
    id: int = 0
    """SQLite's number of the row."""


KEY = ("job_id", "restarts", "node", "cluster", "uid")
"""What names a run."""
AT_FIRST = {
    "head": "1",
    "state": "own_state",
    "first_start": "start",
    "peak_mib": "own_peak_mib",
    "records": "1",
    "attempts": "restarts + 1",
    "ooms": "oom",
    "redone": "0",
    "strangers": "0",
}
"""What is folded of a run that is, as far as is known, its job's only one: SQL of the record's columns."""
WRITTEN: Tuple[str, ...] = tuple(name for name in Row._fields if name not in Row._field_defaults)
"""What a record gives."""
_KINDS = get_type_hints(Row, include_extras=True)
_SQL_TYPES: Dict[object, str] = {
    **dict.fromkeys((int, bool, Optional[int], Optional[bool], Word), "INTEGER"),
    **dict.fromkeys((float, Optional[float]), "REAL"),
    **dict.fromkeys((str, Numbers, Lines, Devices), "TEXT"),
}
FIXED_WORDS = (
    "", "shared", "whole", "observed", "COMPLETED", "TIMEOUT", "RUNNING", "FAILED", "remembered", "REQUEUED"
)  # fmt: skip
"""Words that are compared with in SQL: their numbers are their places here, from 1."""
NONE_WORD, SHARED_WORD, WHOLE_WORD, OBSERVED_WORD = 1, 2, 3, 4
COMPLETED_WORD, TIMEOUT_WORD, RUNNING_WORD, FAILED_WORD, REMEMBERED_WORD, REQUEUED_WORD = 5, 6, 7, 8, 9, 10
_CACHE_KIB = 65_536
DIMENSIONS = ("user", "account", "model", "gpu", "partition", "day")


def fields_of(kind: object) -> Tuple[int, ...]:
    """The places in a row of the fields of such a type."""
    return tuple(at for at, name in enumerate(Row._fields) if _KINDS[name] == kind)


def _column(name: str) -> str:
    if name == "id":
        return "id INTEGER PRIMARY KEY"
    kind = _KINDS[name]
    empty = f" DEFAULT {NONE_WORD}" if kind == Word else " DEFAULT ''" if kind is str else ""
    return f'"{name}" {_SQL_TYPES[kind]}{empty}'


_IN_ORDER = sorted(Row._fields, key=lambda name: _SQL_TYPES[_KINDS[name]] == "TEXT")
"""Long texts last: SQLite steps through a row from its begin."""


def names(fields: Iterable[str]) -> str:
    """Columns as SQL names them."""
    return ", ".join(f'"{name}"' for name in fields)


TABLES = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE word (id INTEGER PRIMARY KEY, text TEXT UNIQUE NOT NULL);
CREATE TABLE device (id INTEGER PRIMARY KEY, node TEXT, uuid TEXT, number INTEGER, name TEXT,
    memory_mib INTEGER, longest_s REAL DEFAULT 0, UNIQUE (node, uuid));
CREATE TABLE folder (id INTEGER PRIMARY KEY, path TEXT UNIQUE, owner INTEGER, stamp INTEGER,
    looked REAL, took REAL);
CREATE TABLE book (path TEXT PRIMARY KEY, inode INTEGER, read INTEGER, grown REAL) WITHOUT ROWID;
CREATE TABLE bad (path TEXT PRIMARY KEY, reason TEXT, count INTEGER) WITHOUT ROWID;
CREATE TABLE job ({", ".join(map(_column, _IN_ORDER))});
CREATE TABLE stay (device INTEGER, start REAL, run INTEGER, end REAL, used REAL,
    PRIMARY KEY (device, start, run)) WITHOUT ROWID;
CREATE UNIQUE INDEX job_run ON job ({names(KEY)});
"""

UNJOINED = "joined IS NULL AND head = 1"
"""Rows that Slurm's accounting has not been joined with."""

INDEXES = f"""
CREATE INDEX IF NOT EXISTS job_unsettled ON job (id) WHERE settled = 0;
CREATE INDEX IF NOT EXISTS job_start ON job (start);
CREATE INDEX IF NOT EXISTS job_user ON job (user, start);
CREATE INDEX IF NOT EXISTS job_array ON job (array_job) WHERE array_job IS NOT NULL;
CREATE INDEX IF NOT EXISTS job_unjoined ON job (start) WHERE {UNJOINED};
""" + "".join(
    f"CREATE INDEX IF NOT EXISTS error_{name} ON job ({name}, error_pm) WHERE judged = 1;\n"
    for name in DIMENSIONS
)
"""Made after the first filling, which is quicker so. Medians by group are read off the last ones in order,
without sorting."""


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


# Where the index is for whoever asks: root's for the site, or one of the user's own jobs.
#
# The file system decides who sees what. Root's index holds everybody's jobs; root, the coordinators of
# Slurm's accounts and the groups that the site names may read it. All others get an index of their own jobs.

NAME = "index.sqlite"


def readable_site_index(config: AccountingConfig) -> Optional[Path]:
    """Root's index, when it is there and this user may read it; one's own is none, wherever it is."""
    path = config.site_index / NAME
    try:
        own = os.stat(path).st_uid == os.geteuid()
    except OSError:
        return None
    return path if not own and os.access(path, os.R_OK, effective_ids=True) else None


def open_own(config: AccountingConfig, fill: Callable[[sqlite3.Connection], object]) -> sqlite3.Connection:
    """The index to write to, brought up to date; a new one is made beside it and moved in."""
    path = _folder(config) / NAME
    source = "\n".join(config.folders)
    try:
        connection = _existing(path, source)
        if connection is not None:
            try:
                fill(connection)
            except sqlite3.OperationalError as error:
                # Somebody else is at it, or the disk is full: what is there still answers.
                if "locked" not in str(error) and "full" not in str(error):
                    raise
            return connection
    except sqlite3.DatabaseError:
        # Damaged, by a full disk or a half copy. It holds nothing that is not in the records.
        pass
    return _make(path, source, fill)


def _existing(path: Path, source: str) -> Optional[sqlite3.Connection]:
    if not path.exists():
        return None
    connection = connect(path)
    if is_current(connection):
        known = connection.execute("SELECT value FROM meta WHERE key = 'folders'").fetchone()
        if known is not None and known[0] == source:
            return connection
    connection.close()
    return None


def _make(path: Path, source: str, fill: Callable[[sqlite3.Connection], object]) -> sqlite3.Connection:
    remove_dead_drafts(path.parent)
    try:
        with replaced(path, mode=0o600) as draft:
            connection = create(draft)
            try:
                connection.execute("INSERT INTO meta VALUES ('folders', ?)", (source,))
                fill(connection)
            finally:
                connection.close()
    except (OSError, sqlite3.Error) as error:
        raise AccountingError(
            f"{path}: cannot make the index: {error}\nIt needs a local disk with about 450 bytes a record; "
            "GPUMEM_INDEX=DIR names another folder."
        ) from None
    return connect(path)


def _folder(config: AccountingConfig) -> Path:
    """The index's folder, made if need be, and nobody else's."""
    folder = config.own_index
    mode = 0o711 if os.geteuid() == 0 else 0o700
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
        about = os.stat(folder, follow_symlinks=False)
    except OSError as error:
        raise AccountingError(f"{folder}: cannot keep the index there: {error.strerror}") from None
    if about.st_uid != os.geteuid():
        raise AccountingError(f"{folder}: is another user's; GPUMEM_INDEX=DIR names a folder for the index")
    if not stat.S_ISDIR(about.st_mode) or about.st_mode & 0o022:
        raise AccountingError(
            f"{folder}: others may write there, and so to the index; GPUMEM_INDEX=DIR names another folder"
        )
    return folder
