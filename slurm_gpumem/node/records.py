"""The job record: one small JSON file per job run and node, which recovery and reports read.

The format is in docs/admin/node.md. `schema` grows with every change that a reader could notice.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Set

from slurm_gpumem.files import read_json, write_json
from slurm_gpumem.formats.comment import record_fields
from slurm_gpumem.node.jobs import NodeJob

SCHEMA = "gpumem-job/1"
_NEAR = 0.9
"""A peak within this part of the limit makes an out-of-memory error likely."""
_PROGRAMS_XIDS = (13, 31, 43, 45)
"""Driver errors that programs cause; others are the GPU's, its memory's or the bus's."""


def record_path(spool: Path, job_id: int, restarts: int, node: str) -> Path:
    """Where the record of one run of a job on one node is."""
    return spool / f"{job_id}.{restarts}.{node}.json"


def open_record(job: NodeJob, node: str) -> Dict[str, Any]:
    """The record as the prolog knows it; what nobody has measured yet is null."""
    return {
        "schema": SCHEMA,
        "job_id": job.job_id,
        "restarts": job.restarts,
        "cluster": job.cluster,
        "partition": job.partition,
        "node": node,
        "user": job.user,
        "uid": job.uid,
        "mode": job.mode,
        "gpus": list(job.gpus),
        "claimed": record_fields(job.claim) if job.claim else None,
        "estimate_mib": job.claimed.estimate_mib,
        "request_mib": job.claimed.request_mib,
        "shards": None,
        "shards_verified": False,
        "limit_mib": None,
        "start": job.started,
        "end": None,
        "exit_code": None,
        "signal": None,
        "state": None,
        "peak_mib": None,
        "mean_mib": None,
        "gpu": {},
        "energy_j": None,
        "met": [],
        "samples": 0,
        "events": [],
        "hints": [],
        "verdict": None,
        "notes": list(job.notes),
    }


def merge_usage(record: Dict[str, Any], usage: Mapping[str, Any]) -> None:
    """Put what the sampler measured into the record."""
    for key in (
        "shards", "shards_verified", "limit_mib", "peak_mib", "mean_mib", "gpu", "energy_j", "met",
        "samples", "events",
    ):  # fmt: skip
        if key in usage:
            record[key] = usage[key]
    record["notes"] = sorted({*record["notes"], *usage.get("notes", ())})


def close_record(
    record: Dict[str, Any], *, end: float, status: str, earlier: Iterable[Mapping[str, Any]] = ()
) -> None:
    """End it with the job's exit code ("1:0", as SLURM_JOB_EXIT_CODE2 writes it) and what that suggests."""
    code, _, signal = status.partition(":")
    record["end"] = end
    record["exit_code"] = int(code) if code.isdigit() else None
    record["signal"] = int(signal) if signal.isdigit() else None
    record["hints"] = hints(record, earlier)


def add_event(record: Dict[str, Any], event: Mapping[str, Any]) -> None:
    """Put an event in, in place of an earlier telling of the same one."""
    same = ("kind", "gpu", "at")
    kept = [old for old in record["events"] if any(old.get(key) != event.get(key) for key in same)]
    record["events"] = [*kept, dict(event)]


def amend_record(spool: Path, job_id: int, restarts: int, node: str, event: Mapping[str, Any]) -> None:
    """An event that became known after the epilog; does nothing where there is no record."""
    record = read_json(record_path(spool, job_id, restarts, node))
    if isinstance(record, dict) and record.get("schema") == SCHEMA:
        add_event(record, event)
        record["hints"] = hints(record, earlier_runs(spool, job_id, restarts))
        write_record(spool, record, durable=True)


def amend_state(spool: Path, job_id: int, restarts: int, node: str, state: str) -> None:
    """How Slurm says that the job ended; an Epilog is told less. Does nothing where there is no record."""
    record = read_json(record_path(spool, job_id, restarts, node))
    if isinstance(record, dict) and record.get("schema") == SCHEMA and record.get("end") is not None:
        record["state"] = state
        write_record(spool, record, durable=True)


def hints(record: Mapping[str, Any], earlier: Iterable[Mapping[str, Any]] = ()) -> List[str]:
    """What the measurements say about a failed job; whoever decides also reads the job's own output.

    `earlier` are the records of the job's runs before this one; they are only looked at after a fault.
    """
    failed = bool(record["exit_code"] or record["signal"])
    if not failed:
        return []
    peak, limit = record["peak_mib"], record["limit_mib"]
    near = peak is not None and limit is not None and peak >= _NEAR * limit
    return [*(["near-limit"] if near else []), *_fault_hints(record, earlier)]


def _fault_hints(record: Mapping[str, Any], earlier: Iterable[Mapping[str, Any]]) -> List[str]:
    """Whose fault? A client's fault takes its user's other clients with it, all with the same error.

    Neither MPS nor the driver says whose it was: the pid in the kernel's Xid line is some client's of that
    server, not the culprit's. So only company tells: who faults without any did it, and
    so did who faults again in quite other company.
    """
    faults = _faults(record)
    if not faults:
        return []
    if any(event.get("xid", _PROGRAMS_XIDS[0]) not in _PROGRAMS_XIDS for event in faults):
        return ["gpu-fault"]
    company = _company(faults)
    if not company:
        return ["own-fault"]
    before = [_company(old) for old in map(_faults, earlier) if old]
    if not before:
        return ["neighbour-fault"]
    return ["neighbour-fault", "repeated-fault"] if set.intersection(company, *before) else ["own-fault"]


def _faults(record: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    return [event for event in record["events"] if event.get("kind") in ("mps-fault", "xid")]


def _company(faults: Iterable[Mapping[str, Any]]) -> Set[int]:
    return {job_id for event in faults for job_id in event.get("with", ())}


def earlier_runs(spool: Path, job_id: int, restarts: int) -> Iterator[Dict[str, Any]]:
    """The job's runs before this one, on any node that writes into this spool."""
    if restarts:
        for record in read_records(spool, job_id):
            if record["restarts"] < restarts:
                yield record


def write_record(spool: Path, record: Mapping[str, Any], *, durable: bool = False) -> None:
    """Write it whole, root's, readable by the job's own user."""
    spool.mkdir(mode=0o755, parents=True, exist_ok=True)
    path = record_path(spool, record["job_id"], record["restarts"], record["node"])
    write_json(
        path,
        record,
        mode=0o640,
        reader_uid=record["uid"],
        reader_gid=group_of(record["uid"]),
        durable=durable,
    )


def read_records(spool: Path, job_id: Optional[int] = None) -> Iterator[Dict[str, Any]]:
    """The records that this user may read, oldest job first; files that are no records are passed over."""
    try:
        names = [name for name in os.listdir(spool) if name.endswith(".json") and name[0].isdigit()]
    except OSError:
        return
    prefix = "" if job_id is None else f"{job_id}."
    for name in sorted(names, key=lambda name: (int(name.split(".")[0]), name)):
        if name.startswith(prefix):
            record = read_json(spool / name)
            if isinstance(record, dict) and str(record.get("schema", "")).startswith("gpumem-job/"):
                yield record


def group_of(uid: int) -> Optional[int]:
    """The user's primary group; None when nobody has that number."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return None
