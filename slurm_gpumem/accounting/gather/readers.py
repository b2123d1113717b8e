"""Who may read the site's index besides root: groups the site names, and coordinators of Slurm's accounts."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path
from typing import Iterable, List, Tuple

from slurm_gpumem.files import allow_readers


def allow(path: Path, users: Iterable[str], groups: Iterable[str]) -> Tuple[str, ...]:
    """Let these read a file of root's, by an access list; the names nobody here has."""
    unknown: List[str] = []
    uids, gids = [], []
    for name in users:
        try:
            uids.append(pwd.getpwnam(name).pw_uid)
        except KeyError:
            unknown.append(name)
    for name in groups:
        try:
            gids.append(grp.getgrnam(name).gr_gid)
        except KeyError:
            unknown.append(name)
    if not uids and not gids:
        os.chmod(path, 0o600)
        return tuple(unknown)
    allow_readers(path, set(uids) - {0}, gids)
    return tuple(unknown)
