"""What hooks and sampler put into a job's record, and what a failed run's record suggests.

The format and its reader are in formats/job_record.py; the meaning of each key is in docs/admin/node.md.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterable, Iterator, List, Optional, Set, Tuple

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
from slurm_gpumem.node.jobs import NodeJob
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


def closed_record(
    record: JobRecord, *, end: float, status: str, earlier: Iterable[JobRecord] = ()
) -> JobRecord:
    """The record's end: the exit code ("1:0", as SLURM_JOB_EXIT_CODE2 writes it) and what that suggests."""
    code, _, signal = status.partition(":")
    ended = record._replace(
        end=end,
        exit_code=int(code) if code.isdigit() else None,
        signal=int(signal) if signal.isdigit() else None,
    )
    return ended._replace(hints=hints(ended, earlier))


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
) -> None:
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
        write_job_record(spool, record._replace(state=state, measured=measured), durable=True)


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
