"""The folder of an MPS daemon on a GPU: its pipe and its log, on a small file system of its own.

A user's daemon runs as that user, so the user can fill that folder. On a file system of its own that takes
nothing from root's files or from another user's daemon. It needs root, and a mount that the job's processes
can see. Root's daemon for all users writes its log there, which users lengthen by connecting; they pass
through the folder and can neither list nor change anything in it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Optional

from slurm_gpumem.node.jobs import SHARED_UID

_INODES = 1024
_MOUNT_S = 2.0
_OWN_NAMESPACE = re.compile(r"(?im)^[ \t]*(JobContainerType|NamespaceType)[ \t]*=[ \t]*(?!\S*none)\S")
_SLURM_CONF = "/etc/slurm/slurm.conf"


def make_home(home: Path, uid: int, mib: int) -> None:
    """The folder with the daemon owner's `pipe` and `log` in it; OSError when that cannot be done."""
    _make_folder(home)
    if mib and why_no_mount() is None:
        options = f"size={mib}m,nr_inodes={_INODES},mode=0755,nosuid,nodev,noexec"
        _run("mount", "-t", "tmpfs", "-o", options, "gpumem", str(home))
    for place in (home / "pipe", home / "log"):
        place.mkdir(mode=0o700)
        if os.geteuid() == 0:
            os.chown(place, uid, -1)
    if uid == SHARED_UID:
        (home / "pipe").chmod(0o711)


def remove_home(home: Path) -> None:
    """Remove the folder with whatever the user has put there; what resists stays, and is theirs alone."""
    if os.path.ismount(home):
        # Detached at once, however much is in it and whoever still has a file open there.
        _run("umount", "-l", str(home))
    try:
        # It does not follow links, so a user's link in there removes only itself.
        shutil.rmtree(home, ignore_errors=True)
    except RecursionError:
        pass  # nested deeper than Python goes; the next daemon there cannot start, which harms nobody else
    try:
        home.parent.rmdir()
    except OSError:
        pass  # another user's daemon is on this GPU


def why_no_mount() -> Optional[str]:
    """Why users' folders get no file system of their own here; None when they do."""
    if os.geteuid() != 0:
        return "not root"
    if not _in_the_nodes_namespace():
        return "slurmd has a mount namespace of its own: a daemon that systemd starts would not see it"
    try:
        text = Path(os.environ.get("SLURM_CONF") or _SLURM_CONF).read_text(errors="replace")
    except OSError:
        return None
    # Slurm makes a job's namespace before it runs the Prolog: the job would not see a mount made there.
    return "jobs have mount namespaces of their own" if _OWN_NAMESPACE.search(text) else None


def _in_the_nodes_namespace() -> bool:
    try:
        return os.path.samestat(os.stat("/proc/1/ns/mnt"), os.stat("/proc/self/ns/mnt"))
    except OSError:
        return True  # in a container of the site's own making, root may not look at process 1


def _make_folder(home: Path) -> None:
    for attempt in range(3, -1, -1):
        try:
            home.mkdir(mode=0o755, parents=True)
            return
        except FileNotFoundError:
            # The last daemon of another user on this GPU has just left and taken the parent with it.
            if not attempt:
                raise


def _run(*command: str) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_MOUNT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{command[0]} took more than {_MOUNT_S:g} s") from None
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.decode(errors='replace').strip()[:200]}")
