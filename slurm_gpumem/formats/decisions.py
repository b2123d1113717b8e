"""`gpumem-decisions/1`: what recovery decided about one job, run by run; a decision is final.

SlurmUser writes it below StateSaveLocation, one small file per job. The job's comment cannot be believed
about it, because its owner may rewrite that at any time: which runs were judged, and how many were given.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from slurm_gpumem.files import read_json_of, write_json
from slurm_gpumem.formats.values import MOST_NOTE, clean, moment, whole

SCHEMA = "gpumem-decisions/1"
_MAX_BYTES, _MOST_DECISIONS, _MOST_REQUEST = 1 << 16, 100, 400


class Decision(NamedTuple):
    """What became of one run that failed."""

    run: int
    """The run that failed, as Slurm counts restarts."""
    at: float
    """Unix time."""
    requeued: bool
    reason: str
    verdict: str = ""
    """Why another run was given: the name of a verdict."""
    request: str = ""
    """The value of Gres= for it; empty: as it was."""
    shards: Optional[int] = None
    was: Optional[int] = None
    """Shards of the next run and of the one that failed."""
    need_mib: Optional[int] = None
    whole: bool = False
    """Whether the next run has a GPU to itself."""
    used_s: Optional[int] = None
    """Of a job with slots: what its runs up to this one took, of its time limit."""
    limit_min: Optional[int] = None
    """Minutes that are left for the next run; None: as it was."""
    save_s: Optional[int] = None
    """How long its longest checkpoint took."""


class BadDecisionsError(ValueError):
    """A file that is there and cannot be used."""


def read_decisions(path: Path) -> Tuple[Decision, ...]:
    """The decisions about a job, oldest first; none without a file. BadDecisionsError if it is unusable."""
    if not os.path.lexists(path):
        return ()
    table = read_json_of(path, owners=(0, os.geteuid()), most_bytes=_MAX_BYTES)
    listed = table.get("decisions") if isinstance(table, dict) and table.get("schema") == SCHEMA else None
    if not isinstance(listed, list):
        raise BadDecisionsError(f"{path} cannot be read or was not written by gpumem")
    return tuple(_decision(item, path) for item in listed)


def write_decisions(path: Path, decisions: Tuple[Decision, ...]) -> None:
    """Write them whole; they outlive a crash of the machine."""
    listed: List[Dict[str, Any]] = [one._asdict() for one in decisions[-_MOST_DECISIONS:]]
    write_json(path, {"schema": SCHEMA, "decisions": listed}, mode=0o600, durable=True)


def _decision(item: Any, path: Path) -> Decision:
    table: Mapping[str, Any] = item if isinstance(item, dict) else {}
    run, at = whole(table.get("run")), moment(table.get("at"))
    if run is None or at is None:
        raise BadDecisionsError(f"{path} cannot be read or was not written by gpumem")
    return Decision(
        run,
        at,
        table.get("requeued") is True,
        _text(table.get("reason")),
        _text(table.get("verdict")),
        _text(table.get("request"), _MOST_REQUEST),
        whole(table.get("shards")),
        whole(table.get("was")),
        whole(table.get("need_mib")),
        table.get("whole") is True,
        whole(table.get("used_s")),
        whole(table.get("limit_min")),
        whole(table.get("save_s")),
    )


def _text(value: Any, most: int = MOST_NOTE) -> str:
    return clean(value)[:most] if isinstance(value, str) else ""
