"""What hooks and sampler put into a job's record, and what a failed run's record suggests.

The format and its reader are in formats/job_record.py; the meaning of each key is in docs/admin/node.md.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, Iterator, List, Optional, Set, Tuple

from slurm_gpumem.files import LockTimeoutError, locked, remove, remove_dead_drafts
from slurm_gpumem.formats.job_record import (
    BadRecordError,
    FaultEvent,
    JobRecord,
    Measurement,
    read_job_record,
    record_name,
    write_job_record,
)
from slurm_gpumem.formats.verdicts import (
    GPU_FAULT,
    NEAR_LIMIT,
    NEIGHBOUR_FAULT,
    OWN_FAULT,
    REPEATED_FAULT,
    SLOT,
)
from slurm_gpumem.node.jobs import NodeJob, RunFolder
from slurm_gpumem.slurm.state.queue import REQUEUED, SlurmJob

NEAR = 0.9
"""A peak at this part of the limit is near it."""
_PROGRAMS_XIDS = (13, 31, 43, 45)
"""Driver errors that programs cause; others are the GPU's, its memory's or the bus's."""


def open_record(job: NodeJob, node: str) -> JobRecord:
    """The record as the prolog knows it."""
    return JobRecord(
        job_id=job.job_id,
        restarts=job.restarts,
        uid=job.uid,
        node=node,
        start=job.started,
        cluster=job.cluster,
        partition=job.partition,
        user=job.user,
        mode=job.mode,
        gpus=job.gpus,
        claim=job.claim,
        notes=job.notes,
    )


def with_measurement(record: JobRecord, measured: Measurement, notes: Iterable[str]) -> JobRecord:
    """The record with what the sampler measured and noted."""
    return record._replace(measured=measured, notes=tuple(sorted({*record.notes, *notes})))


def closed_record(record: JobRecord, *, end: float, status: str) -> JobRecord:
    """The record's end: the exit code ("1:0", as SLURM_JOB_EXIT_CODE2 writes it) and what that suggests."""
    code, _, signal = status.partition(":")
    ended = record._replace(
        end=end,
        exit_code=int(code) if code.isdigit() else None,
        signal=int(signal) if signal.isdigit() else None,
    )
    return ended._replace(hints=hints(ended, ()))


def with_event(record: JobRecord, event: FaultEvent) -> JobRecord:
    """The record with an event, in place of an earlier report of the same one."""
    kept = [old for old in record.measured.events if not old.same_as(event)]
    return record._replace(measured=record.measured._replace(events=(*kept, event)))


def amend_record(spool: Path, job_id: int, restarts: int, node: str, event: FaultEvent) -> None:
    """An event that became known after the epilog; does nothing where there is no record."""
    record = find_record(spool, job_id, restarts, node)
    if record is not None:
        amended = with_event(record, event)
        suggested = hints(amended, earlier_runs(spool, job_id, restarts))
        write_job_record(spool, amended._replace(hints=suggested), durable=True)


def amend_end(
    spool: Path, restarts: int, node: str, known: SlurmJob, limit_mib: Optional[int] = None
) -> Optional[JobRecord]:
    """How Slurm says that the run ended; an epilog learns less. Does nothing where there is no record.

    `limit_mib`: what its shards stand for. A run that was over before the sampler saw it has both from here.
    """
    record = find_record(spool, known.job_id, restarts, node)
    if record is not None and record.end is not None:
        state = known.end_of(restarts)
        if state == REQUEUED and record.failed and not record.killed and record.verdict != SLOT:
            state = "FAILED"  # by itself, and only then was it requeued
        # A job that was over before the first answer came is named here as its array's task.
        measured = record.measured._replace(array_job=known.array_job, array_task=known.array_task)
        if measured.shards is None and known.shards is not None and known.restarts == restarts:
            measured = measured._replace(shards=known.shards, shards_verified=True, limit_mib=limit_mib)
        record = record._replace(state=state, measured=measured)
        write_job_record(spool, record, durable=True)
    return record


def amend_use(spool: Path, job_id: int, restarts: int, node: str, measured: Measurement) -> None:
    """Activity, energy and CPUs up to the run's end: the epilog knows them up to the reading before."""
    record = find_record(spool, job_id, restarts, node)
    if record is not None and record.end is not None:
        whole = record.measured._replace(
            gpu=measured.gpu,
            energy_j=measured.energy_j,
            cpus=measured.cpus,
            cpus_mean=measured.cpus_mean,
            cpus_high=measured.cpus_high,
        )
        if whole != record.measured:
            write_job_record(spool, record._replace(measured=whole), durable=True)


def hints(record: JobRecord, earlier: Iterable[JobRecord] = ()) -> Tuple[str, ...]:
    """What the measurements say about a failed job; whoever decides also reads the job's own output.

    `earlier` are the records of the job's runs before this one; they are only looked at after a fault.
    """
    if not record.failed or record.verdict == SLOT:
        return ()
    peak, limit = record.measured.peak_mib, record.measured.limit_mib
    near = peak is not None and limit is not None and peak >= NEAR * limit
    return (*([NEAR_LIMIT] if near else []), *_fault_hints(record, earlier))


def _fault_hints(record: JobRecord, earlier: Iterable[JobRecord]) -> List[str]:
    """Whose fault? A client's fault takes its user's other clients with it, all with the same error.

    Neither MPS nor the driver says whose it was: the pid in the kernel's Xid line is some client's of that
    server, not the culprit's. So only its companions show it: a job that faults without any did it, and
    so did who faults again in quite other company.
    """
    faults = _faults(record)
    if not faults:
        return []
    if any(event.xid is not None and event.xid not in _PROGRAMS_XIDS for event in faults):
        return [GPU_FAULT]
    company = _company(faults)
    if not company:
        return [OWN_FAULT]
    # Clusters of a federation may share a spool: the same number is another job there.
    runs = (old for old in earlier if (old.cluster, old.uid) == (record.cluster, record.uid))
    before = [_company(old) for old in map(_faults, runs) if old]
    if not before:
        return [NEIGHBOUR_FAULT]
    return [NEIGHBOUR_FAULT, REPEATED_FAULT] if set.intersection(company, *before) else [OWN_FAULT]


def _faults(record: JobRecord) -> List[FaultEvent]:
    return [event for event in record.measured.events if event.kind in ("mps-fault", "xid")]


def _company(faults: Iterable[FaultEvent]) -> Set[int]:
    return {job_id for event in faults for job_id in event.others}


def find_record(spool: Path, job_id: int, restarts: int, node: str) -> Optional[JobRecord]:
    """The record of one run of a job on one node; None when there is none."""
    return read_record(spool / record_name(job_id, restarts, node))


def earlier_runs(spool: Path, job_id: int, restarts: int) -> Iterator[JobRecord]:
    """The job's runs before this one, on any node that writes into this spool."""
    if restarts:
        for record in read_records(spool, job_id):
            if record.restarts < restarts:
                yield record


def read_records(spool: Path, job_id: Optional[int] = None) -> Iterator[JobRecord]:
    """The records that this user may read, oldest job first; files that are no records are passed over."""
    try:
        names = [name for name in os.listdir(spool) if name.endswith(".json") and name[0].isdigit()]
    except OSError:
        return
    prefix = "" if job_id is None else f"{job_id}."
    for name in sorted(names, key=lambda name: (int(name.split(".")[0]), name)):
        record = read_record(spool / name) if name.startswith(prefix) else None
        if record is not None:
            yield record


def read_record(path: Path) -> Optional[JobRecord]:
    """The record in a file; None when there is none that can be used."""
    try:
        return read_job_record(path)
    except (OSError, BadRecordError):
        return None


# Where a node's job records are written, so that one that is closed stays closed.
#
# Prolog, sampler and epilog write to a spool that may be slow, full or gone for a while. A record is closed
# in /run first, which does not hang, and from there it goes to the spool: at once where that works, else by
# the sampler when it works again. Nobody replaces a closed record with an open one of the same run. A
# closed run is listed in /run until Slurm has told how it ended, however short it was and whoever closed
# it.

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
        found = (find_record(place, job_id, restarts, self.node) for place in places)
        return next((record.end for record in found if record is not None and record.end is not None), None)

    def opened(self, job_id: int, restarts: int) -> Optional[JobRecord]:
        """The run's record in the spool, if nobody has closed it."""
        found = find_record(self.spool, job_id, restarts, self.node)
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
            amend_record(self.spool, job_id, restarts, self.node, event)

    def amend_end(
        self, restarts: int, known: SlurmJob, limit_mib: Optional[int], timeout_s: float
    ) -> Optional[JobRecord]:
        """How Slurm says that a run ended; its record with that."""
        with self._lock(timeout_s):
            self._flush(record_name(known.job_id, restarts, self.node))
            return amend_end(self.spool, restarts, self.node, known, limit_mib)

    def amend_use(self, job_id: int, restarts: int, measured: Measurement, timeout_s: float) -> None:
        """Activity and energy of a run's last seconds."""
        with self._lock(timeout_s):
            self._flush(record_name(job_id, restarts, self.node))
            amend_use(self.spool, job_id, restarts, self.node, measured)

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
            record = read_record(path) if modified > last - _DAY_S else None
            if record is not None and record.end is None:
                found.append((record.job_id, record.restarts))
        return found

    def close_left_open(self, job_id: int, restarts: int, state: str, timeout_s: float) -> None:
        """Close a record whose run is over, with what is known: its end is when it was last written."""
        with self._lock(timeout_s):
            record = find_record(self.spool, job_id, restarts, self.node)
            if record is None or record.end is not None:
                return
            seen = os.stat(self.spool / record_name(job_id, restarts, self.node)).st_mtime
            record = record._replace(state=state, notes=(*record.notes, _NOT_SEEN))
            closed = closed_record(record, end=round(max(seen, record.start), 3), status="")
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
        record, there = read_record(path), read_record(self.spool / name)
        if record is not None and not _closes(there, record):
            earlier = earlier_runs(self.spool, record.job_id, record.restarts)
            suggested = hints(record, earlier)
            write_job_record(self.spool, record._replace(hints=suggested), durable=True)
        elif record is None or (there is not None and there.state):
            remove(path)  # no record, or closed twice and all is known of it
            return
        self.folder.unsettled.mkdir(mode=0o700, exist_ok=True)
        os.replace(path, self.folder.unsettled / name)


def _is_closed(place: Path, record: JobRecord) -> bool:
    """Whether that run has a closed record there."""
    return _closes(find_record(place, record.job_id, record.restarts, record.node), record)


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
