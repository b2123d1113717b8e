"""Whose fault was it: who lost its processes when the GPU or the MPS server faulted.

MPS reports a client's fatal fault to all clients of that server and does not say whose it was.
Jobs of one server share its fate: those of one user on that GPU, or of all users where they share a server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, NamedTuple, Optional, Tuple

from slurm_gpumem.formats.job_record import FaultEvent

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
