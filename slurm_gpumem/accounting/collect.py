"""The collector: closed records of the spool become books, one a user and month, which their user can read.

A million small files are slow to list and back up. A record goes into its user's book first, on disk for
good, and only then is its file removed; if interrupted it is in both, which the index does not mind.
Where root may not write (a network file system that squashes root) the record's owner writes it, in a child.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence, Tuple

from slurm_gpumem.accounting.record_files import RECORD_NAME, read_record_file
from slurm_gpumem.files import RefusedFileError, allow_readers, primary_group
from slurm_gpumem.formats.job_record import BadRecordError, parse_job_record

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
    """Move the records of jobs that ended at least `older_s` ago from the spool into the store's books."""
    records = kept = bad = 0
    failed: Dict[str, None] = {}
    waiting: Dict[int, List[Tuple[Path, bytes]]] = {}
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
                path.unlink()
            moved += len(found)
        waiting.clear()
        return moved

    pending = 0
    for path in _record_files(spool):
        try:
            data, writer = read_record_file(str(path))
            record = parse_job_record(data, writer)
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
    return Collected(records + flush(), kept, bad, tuple(failed))


def append(book: Path, lines: Sequence[bytes], uid: int) -> None:
    """Write lines behind a book, for good; as its user where root is not let."""
    try:
        _append(book, lines, uid)
    except PermissionError:
        if os.geteuid() != 0 or uid == 0:
            raise
        _as_user(uid, book, lines)


def _append(book: Path, lines: Sequence[bytes], uid: int) -> None:
    folder = book.parent
    if not folder.is_dir():
        folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        _keep_roots(folder, uid)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(book, flags, 0o600)
    try:
        if os.geteuid() == 0:
            os.fchown(handle, 0, 0)
            _let_read(handle, uid)
        size = os.fstat(handle).st_size
        # A writer that died in the middle of a line: end it, so that ours stands alone.
        torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        data = (b"\n" if torn else b"") + b"".join(lines)
        while data:
            data = data[os.write(handle, data) :]
        os.fsync(handle)
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


def _as_user(uid: int, book: Path, lines: Sequence[bytes]) -> None:
    """The same in a child that has become the user."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(primary_group(uid) or _NOGROUP)
            os.setuid(uid)
            _append(book, lines, uid)
            code = 0
        except OSError as error:
            code = min(error.errno or 1, 254)
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 0:
        why = os.strerror(code) if code > 0 else f"ended by signal {-code}"
        raise PermissionError(code, f"neither root nor its user may write there ({why})", str(book))


def _record_files(spool: Path) -> List[Path]:
    """Records in the spool, and in the folders of nodes whose spools were pulled here."""
    found: List[Path] = []
    for folder in (
        [spool, *(path for path in sorted(spool.iterdir()) if path.is_dir())] if spool.is_dir() else ()
    ):
        with os.scandir(folder) as entries:
            found += [Path(entry.path) for entry in entries if RECORD_NAME.fullmatch(entry.name)]
    return found
