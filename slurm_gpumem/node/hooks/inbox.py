"""Requests that hooks leave for the node's sampler: files in a folder that only root may enter.

prolog/hand_over.sh writes them: HOOK.JOB.PID, with the hook's variables. One whose hook gave up is called
HOOK.JOB.PID.late: nobody waits for it any more, but what it says still holds.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Dict, NamedTuple, Optional

from slurm_gpumem.files import read_plain, remove
from slurm_gpumem.node import processes
from slurm_gpumem.node.processes import Process

_NAME = re.compile(r"(prolog|epilog)\.([0-9]{1,10})\.([0-9]+)(\.late)?")
_MOST_BYTES = 1 << 20
_END = b"end"
_WORKS_S = 60.0
"""No hook takes that long."""


class Request(NamedTuple):
    """What a hook asked for."""

    file: Path
    hook: str
    job_id: int
    env: Dict[str, str]
    at: float
    """Unix time at which the hook wrote it."""
    waits: Optional[Process]
    """The hook; None when it gave up."""


def is_request(name: str) -> bool:
    """Whether a file with this name is one."""
    return _NAME.fullmatch(name) is not None


def hook_pid(name: str) -> int:
    """The process that wrote it."""
    return int(name.split(".")[2])


def read_request(path: Path) -> Optional[Request]:
    """The request in a file; None while it is being written, or its hook may still do the work itself."""
    hook, job_id, pid, late = _NAME.fullmatch(path.name).groups()  # type: ignore[union-attr]
    env, start = _variables(path), processes.start_of(int(pid))
    try:
        at = os.stat(path).st_mtime
    except OSError:
        return None
    # One that gave up may have started a Python; after that time its number is another process's.
    works = start is not None and (not late or time.time() - at < _WORKS_S)
    if env is None or works == bool(late):
        return None
    return Request(path, hook, int(job_id), env, at, Process(int(pid), start) if start and works else None)


def late_prolog(folder: Path, job_id: int) -> Optional[Request]:
    """What the prolog of a job that is ending asked for, if it gave up and nobody has taken that up."""
    for path in folder.glob(f"prolog.{job_id}.*.late"):
        if is_request(path.name):
            return read_request(path)
    return None


def sleep_note(request: Path) -> Path:
    """Where the hook notes the number of its sleep."""
    return request.with_name(".".join(request.name.split(".")[:3]) + ".sleep")


def forget(request: Path) -> None:
    """Nobody has to do anything about it any more."""
    remove(request)
    remove(sleep_note(request))


def _variables(path: Path) -> Optional[Dict[str, str]]:
    try:
        *fields, end, _ = read_plain(path, most_bytes=_MOST_BYTES).split(b"\0")
    except (OSError, ValueError):
        return None
    pairs = (os.fsdecode(field).partition("=") for field in fields)
    return {key: value for key, _, value in pairs} if end == _END else None
