"""Who is kept off the MPS server that all users share: jobs and users that a fault there has hit before.

A fault takes down all clients of a server, and neither MPS nor the driver says whose it was: the server's log
and the kernel name the client that came first. So everybody it hit is a suspect. A job that is run again gets
time slices then, without MPS: if it was hit by another, it now runs; if the fault was its own, that is seen.
So do all jobs of a user with a second fault within a day, or with one alone at the shared server.
Only the sampler writes here, from the driver's errors and the processes that it saw vanish.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple

from slurm_gpumem.files import read_json_of, write_json
from slurm_gpumem.formats.job_record import FaultEvent
from slurm_gpumem.formats.values import moment
from slurm_gpumem.formats.verdicts import NEIGHBOUR
from slurm_gpumem.node.jobs import NodeJob, RunFolder

# Whose fault was it: who lost its processes when the GPU or the MPS server faulted.
#
# MPS reports a client's fatal fault to all clients of that server and does not say whose it was.
# Jobs of one server share its fate: those of one user on that GPU, or of all users where they share a server.


WINDOW_S = 5.0
"""Losses and faults this close together belong together."""


@dataclass(frozen=True)
class Loss:
    """A job that had GPU processes and has none any more."""

    job_id: int
    uid: int
    daemon_uid: int
    """Whose job it is, and whose MPS server served it."""
    uuid: str
    at: float
    restarts: int = 0


class Fault(NamedTuple):
    """The driver's Xid, or an MPS server that says FAULT."""

    uuid: str
    at: float
    kind: str
    """"xid" or "mps-fault"."""
    xid: Optional[int] = None


class FaultLog:
    """Collects losses and faults; hands out each job's event, and again when more jobs turn out to be hit."""

    def __init__(self) -> None:
        self._losses: List[Loss] = []
        self._faults: List[Fault] = []
        self._told: Dict[Loss, List[int]] = {}

    def lost(self, loss: Loss) -> None:
        self._losses.append(loss)

    def fault(self, fault: Fault) -> None:
        self._faults.append(fault)

    def events(self, now: float) -> List[Tuple[Loss, FaultEvent]]:
        """Every loss near a fault on its GPU, when it is new or its company grew."""
        found = []
        for fault in self._faults:
            near = [
                loss
                for loss in self._losses
                if loss.uuid == fault.uuid and abs(loss.at - fault.at) <= WINDOW_S
            ]
            for loss in near:
                same_fate = {other.job_id for other in near if other.daemon_uid == loss.daemon_uid}
                others = sorted(same_fate - {loss.job_id})
                if self._told.get(loss) != others:
                    self._told[loss] = others
                    event = FaultEvent(fault.kind, fault.uuid, round(loss.at, 1), tuple(others), fault.xid)
                    found.append((loss, event))
        # abs: what is in the future was before the clock was set back.
        self._faults = [fault for fault in self._faults if abs(now - fault.at) < 2 * WINDOW_S]
        self._losses = [loss for loss in self._losses if abs(now - loss.at) < 2 * WINDOW_S]
        self._told = {loss: others for loss, others in self._told.items() if loss in self._losses}
        return found


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
