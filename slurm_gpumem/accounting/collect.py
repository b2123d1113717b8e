"""The collector: closed records of the spool become books, one a user and month, which their user can read.

A million small files are slow to list and back up. A record goes into its user's book first, on disk for
good, and only then is its file removed; if interrupted it is in both, which the index does not mind.
Only root writes: where it may not, the records stay in the spool.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.accounting import remember, sacct, schema
from slurm_gpumem.accounting.jobstats import Written, write_summaries
from slurm_gpumem.accounting.record_files import RECORD_NAME, read_record_file, record_folders, why_distrusted
from slurm_gpumem.accounting.store import Store, open_store
from slurm_gpumem.accounting.types import Freshness
from slurm_gpumem.config.accounting import AccountingConfig
from slurm_gpumem.errors import AccountingError, SlurmError
from slurm_gpumem.files import RefusedFileError, allow_readers, check_plain, primary_group, remove_dead_drafts
from slurm_gpumem.formats.job_record import BadRecordError, parse_job_record
from slurm_gpumem.formats.remembered import NAME
from slurm_gpumem.slurm.state.sacct import ask_coordinators

_BATCH = 2000
_NOGROUP = 65534


class Collected(NamedTuple):
    """What a round did."""

    records: int
    kept: int
    """Records that stay in the spool: of running jobs, or too young."""
    bad: int
    """Files that are no records; they stay where they are, for a person to look at."""
    failed: Tuple[str, ...]
    """What could not be written, and why."""


def collect(spool: Path, store: Path, *, older_s: float) -> Collected:
    """Move the records of jobs that ended at least `older_s` ago from the spool into the store's books.

    AccountingError when others than root may write to one of them.
    """
    for folder in (spool, store):
        _check_trusted(folder)
    records = kept = bad = 0
    failed: Dict[str, None] = {}
    waiting: Dict[int, List[Tuple[str, bytes]]] = {}
    late = time.time() - older_s

    def flush() -> int:
        moved = 0
        for uid, found in waiting.items():
            try:
                append(store / str(uid) / f"{time.strftime('%Y-%m')}.jsonl", [data for _, data in found], uid)
            except OSError as error:
                failed[f"{error.filename or store}: {error.strerror}"] = None
                continue
            for path, _ in found:
                os.unlink(path)
            moved += len(found)
        waiting.clear()
        return moved

    pending = 0
    for path, owner in _record_files(spool):
        try:
            data = read_record_file(path, owner)
            record = parse_job_record(data)
        except (BadRecordError, RefusedFileError):
            bad += 1
            continue
        except OSError:
            continue
        if record.end is None or record.end > late:
            kept += 1
            continue
        waiting.setdefault(record.uid, []).append((path, data.strip().replace(b"\n", b" ") + b"\n"))
        pending += 1
        if pending >= _BATCH:
            records, pending = records + flush(), 0
    records += flush()
    for top in (spool, store):
        for found in record_folders(str(top)):
            if not found.distrusted:
                remove_dead_drafts(found.path)
    return Collected(records, kept, bad, tuple(failed))


def _check_trusted(folder: Path) -> None:
    try:
        why = why_distrusted(os.stat(folder))
    except OSError:
        return  # without a spool there is nothing to move; without a store the writing says so
    if why:
        raise AccountingError(
            f"{folder}: a {why}: records there could be forged, so nothing was moved\n"
            f"Check what is in it, then: chown root {folder}; chmod go-w {folder}"
        )


def append(book: Path, lines: Sequence[bytes], uid: int) -> None:
    """Write lines behind a book, for good."""
    folder = book.parent
    if not folder.is_dir():
        folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        _keep_roots(folder, uid)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(book, flags, 0o600)
    try:
        about = check_plain(handle, (os.geteuid(),))
        if about.st_nlink > 1:
            # Its user is about to be let read it: it must be no second name of another file.
            raise RefusedFileError(errno.EMLINK, "has another name (a hard link)")
        if os.geteuid() == 0:
            _let_read(handle, uid)
        # A writer that died in the middle of a line: end it, so that ours stands alone.
        torn = about.st_size > 0 and os.pread(handle, 1, about.st_size - 1) != b"\n"
        data = (b"\n" if torn else b"") + b"".join(lines)
        while data:
            data = data[os.write(handle, data) :]
        os.fsync(handle)
    except RefusedFileError as error:
        error.filename = str(book)
        raise
    finally:
        os.close(handle)


def _keep_roots(folder: Path, uid: int) -> None:
    """The folder is root's, so that nobody can plant records in it; its user may read it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchown(handle, 0, 0)
        os.fchmod(handle, 0o700)
        _let_read(handle, uid, folder=True)
    finally:
        os.close(handle)


def _let_read(handle: int, uid: int, *, folder: bool = False) -> None:
    if uid == 0:
        return
    try:
        allow_readers(handle, [uid], folder=folder)
    except OSError:
        # No access lists on this file system: the user's own group reads it.
        os.fchown(handle, -1, primary_group(uid) or _NOGROUP)
        os.fchmod(handle, 0o750 if folder else 0o640)


def _record_files(spool: Path) -> Iterator[Tuple[str, int]]:
    """Records in the spool, and in the folders of nodes whose spools were pulled here; whose they must be."""
    for folder, owner, distrusted in record_folders(str(spool)):
        if not distrusted:
            with os.scandir(folder) as entries:
                found = [(entry.path, owner) for entry in entries if RECORD_NAME.fullmatch(entry.name)]
            yield from found


# Who may read the site's index besides root: groups the site names, and coordinators of Slurm's accounts.


def allow(path: Path, users: Iterable[str], groups: Iterable[str]) -> Tuple[str, ...]:
    """Let these read a file of root's, by an access list; the names nobody here has."""
    unknown: List[str] = []
    uids, gids = [], []
    for name in users:
        try:
            uids.append(pwd.getpwnam(name).pw_uid)
        except KeyError:
            unknown.append(name)
    for name in groups:
        try:
            gids.append(grp.getgrnam(name).gr_gid)
        except KeyError:
            unknown.append(name)
    if not uids and not gids:
        os.chmod(path, 0o600)
        return tuple(unknown)
    allow_readers(path, set(uids) - {0}, gids)
    return tuple(unknown)


# A round of `gpumem collect`: books from the spool, the index up to date, peaks remembered, readers.

_JOIN_S = 120.0

Progress = Callable[[int, int], None]
ProgressOf = Callable[[], AbstractContextManager[Progress]]
"""Begins to show how far the index has come."""


class Upkeep(NamedTuple):
    """What a round did."""

    collected: Optional[Collected]
    """None where only the index was brought up to date."""
    freshness: Freshness
    notes: List[str]
    """What an admin should know."""
    summaries: Written


def keep_up(
    config: AccountingConfig,
    spool: Optional[Path],
    store: Path,
    older_s: float,
    progress: ProgressOf,
    *,
    summaries: bool = False,
) -> Upkeep:
    """Move old records of `spool` into the store's books (None: move nothing), then index all there is.

    `summaries`: then write jobstats' into Slurm's accounting.
    """
    notes = [*config.unknown]
    collected = None
    if spool is not None:
        collected = collect(spool, store, older_s=older_s)
        notes += [f"not written: {why}" for why in collected.failed]
    with progress() as bar, open_store(config=config, join=False, force=True, progress=bar) as index:
        sacct.join_slurm(index.connection, force=True, budget_s=_JOIN_S)
        users = [uid for (uid,) in index.connection.execute("SELECT DISTINCT uid FROM job WHERE judged = 1")]
        for uid in users:
            notes += _remember(index, uid, store)
        written = Written()
        if summaries:
            try:
                written = write_summaries(index, budget_s=_JOIN_S)
            except SlurmError as error:
                notes.append(str(error))
        freshness = index.freshness
    unknown = allow(config.own_index / schema.NAME, ask_coordinators(), config.readers)
    if unknown:
        notes.append(f"no such user or group here, so no access to the index: {', '.join(unknown)}")
    return Upkeep(collected, freshness, notes, written)


def _remember(index: Store, uid: int, store: Path) -> List[str]:
    """A user's peaks beside their books, for gpusbatch on any machine that sees the store."""
    folder = store / str(uid)
    try:
        why = why_distrusted(os.stat(folder, follow_symlinks=False))
        if not why:
            remember.write_peaks(index.connection, uid, folder / NAME, mode=0o644)
    except FileNotFoundError:
        return []
    except OSError as error:
        why = error.strerror or "cannot be written"
    return [f"{folder}: {why}; what user {uid} ran is not remembered there"] if why else []
