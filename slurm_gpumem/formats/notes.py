"""`gpumem-fault/1`: the MPS server of a user on a GPU has faulted; who sees it first tells other epilogs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple, Optional, Tuple

from slurm_gpumem.files import read_json_of, write_json
from slurm_gpumem.formats.values import moment, whole_list

FAULT_SCHEMA = "gpumem-fault/1"
_FAULT_HOLDS_S = 30.0
"""The server recovers when its clients are gone; a later fault is another one."""
_MAX_BYTES, _MOST_JOBS = 1 << 16, 1000


class FaultNote(NamedTuple):
    """A fault of one user's MPS server on one GPU."""

    at: float
    jobs: Tuple[int, ...]
    """The user's jobs that were at the server."""


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


def _read(path: Path, schema: str) -> Any:
    table = read_json_of(path, owners=(0, os.geteuid()), most_bytes=_MAX_BYTES)
    return table if isinstance(table, dict) and table.get("schema") == schema else {}
