"""Where a node's job records are written, so that one that is closed stays closed.

Prolog, sampler and epilog write to a spool that may be slow, full or gone for a while. A record is closed in
/run first, which does not hang, and from there it goes to the spool: at once where that works, else by the
sampler when it works again. Nobody replaces a closed record with an open one of the same run. A closed run is
listed in /run until Slurm has told how it ended, however short it was and whoever closed it.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, List, Optional, Tuple

from slurm_gpumem.files import LockTimeoutError, locked, remove, remove_dead_drafts
from slurm_gpumem.formats.job_record import FaultEvent, JobRecord, Measurement, record_name, write_job_record
from slurm_gpumem.node import records
from slurm_gpumem.node.jobs import RunFolder
from slurm_gpumem.slurm.state.queue import SlurmJob

_DAY_S = 86_400.0
_OLDEST_S = 30 * _DAY_S
_SWEEP_EVERY_S = 6 * 3600.0
_SETTLED_S = 600.0
"""A record that nobody has touched for this long has no writer any more."""
_NOT_SEEN = "its end was not seen: closed later, when Slurm did not have this run here any more"


@dataclass(frozen=True)
class RecordStore:
    """The records of one node."""

    folder: RunFolder
    spool: Path
    node: str

    def write_open(self, record: JobRecord, timeout_s: float) -> None:
        """Write what is known of a run that goes on; does nothing when its record is closed already."""
        with self._lock(timeout_s):
            if not _is_closed(self.folder.ended, record) and not _is_closed(self.spool, record):
                write_job_record(self.spool, record)

    def close(self, record: JobRecord, timeout_s: float) -> None:
        """Close it in /run, from where `flush` takes it to the spool; or there, where /run takes nothing."""
        try:
            self.folder.make()
            self.folder.ended.mkdir(mode=0o700, exist_ok=True)
            if not _is_closed(self.folder.ended, record):
                write_job_record(self.folder.ended, record)
        except OSError:
            with self._lock(timeout_s):
                if not _is_closed(self.spool, record):
                    write_job_record(self.spool, record, durable=True)

    def has_closed(self) -> bool:
        """Whether any closed record waits for the spool."""
        return bool(_names(self.folder.ended))

    def end_of(self, job_id: int, restarts: int) -> Optional[float]:
        """When that run ended; None when it has no closed record."""
        places = (self.folder.ended, self.spool)
        found = (records.find_record(place, job_id, restarts, self.node) for place in places)
        return next((record.end for record in found if record is not None and record.end is not None), None)

    def opened(self, job_id: int, restarts: int) -> Optional[JobRecord]:
        """The run's record in the spool, if nobody has closed it."""
        found = records.find_record(self.spool, job_id, restarts, self.node)
        return found if found is not None and found.end is None else None

    def unsettled(self) -> List[Tuple[int, int]]:
        """(job, restarts) of the closed records in the spool that want Slurm's word on their end."""
        names = (name.split(".") for name in _names(self.folder.unsettled))
        return [(int(job_id), int(restarts)) for job_id, restarts, *_ in names]

    def settle(self, job_id: int, restarts: int) -> None:
        """Slurm has said it, or will not."""
        remove(self.folder.unsettled / record_name(job_id, restarts, self.node))

    def flush(self, timeout_s: float) -> None:
        """Bring all closed records to the spool; OSError when that does not take them now."""
        for name in _names(self.folder.ended):
            # One at a time: whoever has something to add to another record need not wait for all.
            with self._lock(timeout_s):
                self._flush(name)

    def amend_event(self, job_id: int, restarts: int, event: FaultEvent, timeout_s: float) -> None:
        """An event that became known after the epilog; does nothing where there is no record."""
        with self._lock(timeout_s):
            self._flush(record_name(job_id, restarts, self.node))
            records.amend_record(self.spool, job_id, restarts, self.node, event)

    def amend_end(self, restarts: int, known: SlurmJob, limit_mib: Optional[int], timeout_s: float) -> None:
        """How Slurm says that a run ended."""
        with self._lock(timeout_s):
            self._flush(record_name(known.job_id, restarts, self.node))
            records.amend_end(self.spool, restarts, self.node, known, limit_mib)

    def amend_use(self, job_id: int, restarts: int, measured: Measurement, timeout_s: float) -> None:
        """Activity and energy of a run's last seconds."""
        with self._lock(timeout_s):
            self._flush(record_name(job_id, restarts, self.node))
            records.amend_use(self.spool, job_id, restarts, self.node, measured)

    def left_open(self) -> List[Tuple[int, int]]:
        """(job, restarts) of this node's records that nobody has written for a while and nobody closed.

        Looked for every six hours at most; also removes what a writer that was killed has left there.
        """
        now, stamp = time.time(), self.folder.swept
        try:
            last = os.stat(stamp).st_mtime
        except OSError:
            last = now - _OLDEST_S + _DAY_S
        if now - last < _SWEEP_EVERY_S:
            return []
        stamp.touch()
        for folder in (self.spool, self.folder.jobs, self.folder.root):
            remove_dead_drafts(folder)
        found = []
        for path, modified in _old_files(self.spool, f".{self.node}.json", now - _SETTLED_S):
            # What was closed or running a day before the last search was seen by that.
            record = records.read_record(path) if modified > last - _DAY_S else None
            if record is not None and record.end is None:
                found.append((record.job_id, record.restarts))
        return found

    def close_left_open(self, job_id: int, restarts: int, state: str, timeout_s: float) -> None:
        """Close a record whose run is over, with what is known: its end is when it was last written."""
        with self._lock(timeout_s):
            record = records.find_record(self.spool, job_id, restarts, self.node)
            if record is None or record.end is not None:
                return
            seen = os.stat(self.spool / record_name(job_id, restarts, self.node)).st_mtime
            record = record._replace(state=state, notes=(*record.notes, _NOT_SEEN))
            closed = records.closed_record(record, end=round(max(seen, record.start), 3), status="")
            write_job_record(self.spool, closed, durable=True)

    @contextlib.contextmanager
    def _lock(self, timeout_s: float) -> Iterator[None]:
        with contextlib.ExitStack() as held:
            try:
                self.folder.make()
                held.enter_context(locked(self.folder.records_lock, timeout_s))
            except LockTimeoutError:
                raise
            except OSError:
                pass  # the run folder is read-only or not ours: nobody has this lock; the spool may be fine
            yield

    def _flush(self, name: str) -> None:
        path = self.folder.ended / name
        if not path.exists():
            return  # nothing to take away either: an epilog may write it at this moment
        record, there = records.read_record(path), records.read_record(self.spool / name)
        if record is not None and not _closes(there, record):
            earlier = records.earlier_runs(self.spool, record.job_id, record.restarts)
            suggested = records.hints(record, earlier)
            write_job_record(self.spool, record._replace(hints=suggested), durable=True)
        elif record is None or (there is not None and there.state):
            remove(path)  # no record, or closed twice and all is known of it
            return
        self.folder.unsettled.mkdir(mode=0o700, exist_ok=True)
        os.replace(path, self.folder.unsettled / name)


def _is_closed(place: Path, record: JobRecord) -> bool:
    """Whether that run has a closed record there."""
    return _closes(records.find_record(place, record.job_id, record.restarts, record.node), record)


def _closes(found: Optional[JobRecord], record: JobRecord) -> bool:
    """Whether that is the run's closed record; one of an earlier job of the same number is not."""
    return found is not None and found.end is not None and found.start >= record.start


def _names(folder: Path) -> List[str]:
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".")]
    except OSError:
        return []


def _old_files(folder: Path, end: str, before: float) -> Iterator[Tuple[Path, float]]:
    """The files with such names that nobody has written since `before`, and when somebody did."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        if name.endswith(end):
            with contextlib.suppress(OSError):  # gone in the meantime
                modified = os.stat(folder / name, follow_symlinks=False).st_mtime
                if modified < before:
                    yield folder / name, modified
