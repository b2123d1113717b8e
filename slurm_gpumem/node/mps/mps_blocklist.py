"""Who is kept off the MPS server that all users share: jobs and users that a fault there has hit before.

A fault takes down all clients of a server, and neither MPS nor the driver says whose it was: the server's log
and the kernel name the client that came first. So everybody it hit is a suspect. A job that is run again gets
time slices then, without MPS: if it was hit by another, it now runs; if the fault was its own, that is seen.
So do all jobs of a user with a second fault within a day, or with one alone at the shared server.
Only the sampler writes here, from the driver's errors and the processes that it saw vanish.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import List

from slurm_gpumem.files import read_json_of, write_json
from slurm_gpumem.formats.values import moment
from slurm_gpumem.formats.verdicts import NEIGHBOUR
from slurm_gpumem.node.jobs import NodeJob, RunFolder
from slurm_gpumem.node.mps.faults import WINDOW_S

HOLDS_S = 86_400.0
_ENOUGH, _MOST_KEPT, _MAX_BYTES = 2, 8, 4096


def note_fault(folder: RunFolder, uid: int, at: float, *, alone: bool) -> None:
    """A fault of the shared server has hit a job of that user; one that was `alone` there did it."""
    times = [known for known in _times(folder, uid) if abs(at - known) > WINDOW_S]
    folder.suspects.mkdir(mode=0o700, exist_ok=True)
    write_json(_path(folder, uid), [*times, *([at] * (_ENOUGH if alone else 1))][-_MOST_KEPT:], mode=0o600)


def why_kept_apart(folder: RunFolder, job: NodeJob) -> str:
    """Why a job must not be at the shared server; empty when it may."""
    # Its owner could have written that, or left MPS: the sampler holds the job to its shards either way.
    if job.claimed.why == NEIGHBOUR:
        return "a fault ended its last run at the shared MPS server"
    now = time.time()
    recent = [at for at in _times(folder, job.uid) if abs(now - at) < HOLDS_S]
    if len(recent) >= _ENOUGH:
        return "faults at the shared MPS server have hit its user's jobs before"
    return ""


def _times(folder: RunFolder, uid: int) -> List[float]:
    listed = read_json_of(_path(folder, uid), owners=(folder.root.stat().st_uid,), most_bytes=_MAX_BYTES)
    found = [moment(item) for item in listed] if isinstance(listed, list) else []
    return [at for at in found if at is not None]


def _path(folder: RunFolder, uid: int) -> Path:
    return folder.suspects / f"{uid}.json"
