"""What is asked about this host, and what was found on it."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Set, Tuple


@dataclass(frozen=True)
class Question:
    """What to look at."""

    hooks: Tuple[Tuple[str, str], ...] = ()
    """Settings of slurm.conf and their programs: ("Prolog", "/etc/slurm/gpumem/prolog.sh")."""
    files: Tuple[str, ...] = ()
    """Files that only trusted users may change."""
    devices: Tuple[str, ...] = ()
    """Device files of gres.conf."""
    trusted_uids: Tuple[int, ...] = (0,)
    trusted_gids: Tuple[int, ...] = (0,)
    slurm_uid: Optional[int] = None
    filter_python: Optional[str] = None
    """What plain sbatch runs, where slurm.conf names the filter."""
    filter_conf: str = ""
    """The hooks.conf that names it."""


@dataclass(frozen=True)
class HostReport:
    """What this host has of our hooks and files."""

    faults: Tuple[Tuple[str, str], ...] = ()
    """Check and what is wrong."""
    unseen: Tuple[str, ...] = ()
    """What could not be looked at, and why."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    nodes: Tuple[str, ...] = ()
    """The cluster's nodes that this host is."""

    @property
    def mark(self) -> str:
        """The same on all hosts whose hooks, settings and package are the same."""
        files = json.dumps(self.facts.get("files", {}), sort_keys=True)
        said = hashlib.sha256(files.encode()).hexdigest()[:12]
        return f"slurm_gpumem {self.facts.get('version', 'not found')}, files {said}"


def takes_jobs(state: str) -> bool:
    """Whether Slurm gives jobs to a node in this state, also by waking it: MIXED, not IDLE+DRAIN."""
    words = _words(state)
    mute = not words & _ASLEEP and ("NOT_RESPONDING" in words or "*" in state)
    return bool(words & {"IDLE", "MIXED", "ALLOCATED", "COMPLETING"}) and not (words & _OUT_OF_USE or mute)


def _words(state: str) -> Set[str]:
    signs = {"~": "+POWERED_DOWN", "#": "+POWERING_UP", "%": "+POWERING_DOWN"}
    return set(re.split(r"[+*!$@^-]+", "".join(signs.get(sign, sign) for sign in state.upper())))


_OUT_OF_USE = {"DRAIN", "DRAINED", "DRAINING", "DOWN", "FAIL", "INVALID_REG"}
_ASLEEP = {"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "POWER_UP"}
"""Of a site that saves power: Slurm wakes such a node when a job needs it."""
