"""Everything that is mounted here, from /proc/self/mountinfo, and what of it a script may write to."""

from __future__ import annotations

import os
import re
from typing import AbstractSet, FrozenSet, List, NamedTuple

NETWORK = {
    "nfs", "nfs4", "lustre", "gpfs", "ceph", "cifs", "smb3", "smbfs", "beegfs", "afs", "panfs", "pvfs2", "9p",
    "virtiofs", "glusterfs", "orangefs", "wekafs",
}  # fmt: skip
KERNEL = {
    "proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "mqueue", "securityfs", "debugfs", "tracefs",
    "bpf", "pstore", "configfs", "fusectl", "hugetlbfs", "binfmt_misc", "rpc_pipefs", "efivarfs", "nsfs",
}  # fmt: skip
"""Never read as files of somebody, and always read-only for the script."""


class Mount(NamedTuple):
    """One line."""

    point: str
    kind: str
    options: FrozenSet[str]

    @property
    def remote(self) -> bool:
        """Whether asking it may take long, or hang where its server is gone."""
        return self.kind in NETWORK or self.kind.startswith("fuse")


def all_mounts(table: str = "/proc/self/mountinfo") -> List[Mount]:
    """In the kernel's order: of two at one point the later one is seen."""
    with open(table, encoding="utf-8", errors="surrogateescape") as file:
        return [_parsed(line) for line in file]


def _parsed(line: str) -> Mount:
    left, _, right = line.partition(" - ")
    fields = left.split(" ")
    return Mount(_unescaped(fields[4]), right.split(" ")[0], frozenset(fields[5].split(",")))


def _unescaped(text: str) -> str:
    r"""The kernel writes a space as \040, as bytes of the name."""
    raw = os.fsencode(text)
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found.group(1), 8)]), raw))


def is_below(path: str, folder: str) -> bool:
    """Whether it lies inside of the folder."""
    return path != folder and path.startswith(folder if folder.endswith("/") else folder + "/")


def writable(mounts: List[Mount], ours: AbstractSet[str]) -> List[Mount]:
    """Mounts that are neither read-only nor made by the guard: there must be none. Of two at one point the
    first is hidden."""
    seen = {mount.point: mount for mount in mounts}
    return [mount for mount in seen.values() if "ro" not in mount.options and mount.point not in ours]
