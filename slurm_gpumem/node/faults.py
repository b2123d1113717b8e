"""Whose fault was it: who lost its processes when the GPU or the MPS server faulted.

MPS reports a client's fatal fault to all clients of that server and does not say whose it was.
The server is the user's own, so only that user's jobs on that GPU are concerned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Tuple

WINDOW_S = 5.0
"""Losses and faults this close together belong together."""


@dataclass(frozen=True)
class Loss:
    """A job that had GPU processes and has none any more."""

    job_id: int
    uid: int
    uuid: str
    at: float
    restarts: int = 0


class FaultLog:
    """Collects losses and faults; hands out each job's event, and again when more jobs turn out to be hit."""

    def __init__(self) -> None:
        self._losses: List[Loss] = []
        self._faults: List[Tuple[str, float, Dict[str, Any]]] = []
        self._told: Dict[Loss, List[int]] = {}

    def lost(self, loss: Loss) -> None:
        self._losses.append(loss)

    def fault(self, uuid: str, at: float, what: Mapping[str, Any]) -> None:
        """The driver's Xid, or an MPS server that says FAULT."""
        self._faults.append((uuid, at, dict(what)))

    def events(self, now: float) -> List[Tuple[Loss, Dict[str, Any]]]:
        """Every loss near a fault on its GPU, when it is new or its company grew."""
        found = []
        for uuid, at, what in self._faults:
            near = [loss for loss in self._losses if loss.uuid == uuid and abs(loss.at - at) <= WINDOW_S]
            for loss in near:
                others = sorted({o.job_id for o in near if o.uid == loss.uid and o.job_id != loss.job_id})
                if self._told.get(loss) != others:
                    self._told[loss] = others
                    found.append((loss, {**what, "gpu": uuid, "at": round(loss.at, 1), "with": others}))
        self._faults = [fault for fault in self._faults if now - fault[1] < 2 * WINDOW_S]
        self._losses = [loss for loss in self._losses if now - loss.at < 2 * WINDOW_S]
        self._told = {loss: others for loss, others in self._told.items() if loss in self._losses}
        return found
