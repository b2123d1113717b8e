"""Who may read the site's index besides root: groups the site names, and coordinators of Slurm's accounts."""

from __future__ import annotations

import grp
import os
import pwd
import struct
from pathlib import Path
from typing import Iterable, List, Tuple

_VERSION = 2
_USER_OBJ, _USER, _GROUP_OBJ, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
_READ, _READ_WRITE, _NO_ID = 4, 6, 0xFFFFFFFF


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
    entries = [(_USER_OBJ, _READ_WRITE, _NO_ID)]
    entries += [(_USER, _READ, uid) for uid in sorted(set(uids) - {0})]
    entries += [(_GROUP_OBJ, 0, _NO_ID)]
    entries += [(_GROUP, _READ, gid) for gid in sorted(set(gids))]
    entries += [(_MASK, _READ, _NO_ID), (_OTHER, 0, _NO_ID)]
    packed = struct.pack("<I", _VERSION) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(path, "system.posix_acl_access", packed)
    return tuple(unknown)
