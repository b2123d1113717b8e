"""Two small notes that processes of one node leave for each other.

`gpumem-fault/1`: a user's MPS server on a GPU has faulted; the first epilog that sees it tells the others.
`gpumem-usage/1`: what a job has used so far; the sampler leaves it for the job's own task epilog.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple, Optional, Tuple

from slurm_gpumem.files import primary_group, read_json_of, write_json
from slurm_gpumem.formats.values import amount, moment, name, whole, whole_list

FAULT_SCHEMA, USAGE_SCHEMA = "gpumem-fault/1", "gpumem-usage/1"
_FAULT_HOLDS_S = 30.0
"""The server recovers when its clients are gone; a later fault is another one."""
_MAX_BYTES, _MOST_JOBS = 1 << 16, 1000


class FaultNote(NamedTuple):
    """A fault of one user's MPS server on one GPU."""

    at: float
    jobs: Tuple[int, ...]
    """The user's jobs that were at the server."""


class UsageNote(NamedTuple):
    """What one job has used so far; None is "not measured"."""

    job_id: int
    shard_mib: Optional[int] = None
    shards: Optional[int] = None
    limit_mib: Optional[int] = None
    estimate_mib: Optional[int] = None
    peak_mib: Optional[float] = None
    energy_j: Optional[float] = None
    sm_active_share: Optional[float] = None
    """Its part of the SM activity, mean over its GPUs."""
    slowdown: Optional[float] = None
    """How many times as long it took so far as it would have alone, where that is known."""
    met: Tuple[int, ...] = ()
    """Other jobs that it met on its GPUs."""
    samples: int = 0
    profile: str = ""
    """Of its MIG instance; "" on a whole GPU."""
    request_mib: Optional[int] = None
    """What it was submitted with for its memory; less than its shards where its activity takes more."""


def write_fault_note(path: Path, note: FaultNote) -> None:
    """For the user's other jobs there, too: their task epilogs read it."""
    write_json(path, {"schema": FAULT_SCHEMA, **note._asdict()}, mode=0o644)


def read_fault_note(path: Path, now: float) -> Optional[FaultNote]:
    """The note, when it is root's (or our own) and of just now."""
    table = _read(path, FAULT_SCHEMA)
    at = moment(table.get("at"))
    if at is None or abs(now - at) > _FAULT_HOLDS_S:
        return None
    return FaultNote(at, whole_list(table.get("jobs"), _MOST_JOBS))


def write_usage_note(path: Path, note: UsageNote, uid: int) -> None:
    """For the job's own user to read, and nobody else."""
    write_json(
        path,
        {"schema": USAGE_SCHEMA, **note._asdict()},
        mode=0o640,
        reader_uid=uid,
        reader_gid=primary_group(uid),
    )


def read_usage_note(path: Path, job_id: int) -> UsageNote:
    """The note on a job; one that says nothing when there is none."""
    get = _read(path, USAGE_SCHEMA).get
    return UsageNote(
        job_id,
        shard_mib=whole(get("shard_mib")),
        shards=whole(get("shards")),
        limit_mib=whole(get("limit_mib")),
        estimate_mib=whole(get("estimate_mib")),
        peak_mib=amount(get("peak_mib")),
        energy_j=amount(get("energy_j")),
        sm_active_share=amount(get("sm_active_share")),
        slowdown=amount(get("slowdown")),
        met=whole_list(get("met"), _MOST_JOBS),
        samples=whole(get("samples")) or 0,
        profile=name(get("profile")),
        request_mib=whole(get("request_mib")),
    )


def _read(path: Path, schema: str) -> Any:
    table = read_json_of(path, owners=(0, os.geteuid()), most_bytes=_MAX_BYTES)
    return table if isinstance(table, dict) and table.get("schema") == schema else {}
