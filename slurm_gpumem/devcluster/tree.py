"""Another Slurm than the system's: one that lies in a tree of its own, used without installing it.

A tree with a shell (made by debootstrap) is entered with chroot, and this machine's own folders
are mounted into it. A tree without one (unpacked packages) is laid over this machine's /usr.
Both happen in a mount namespace that ends with the program: nobody else sees it, nothing is left.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import List, Optional

from slurm_gpumem.devcluster.installation import find_program
from slurm_gpumem.devcluster.layout import Layout
from slurm_gpumem.errors import DevClusterError

_CLIENTS = [
    "sacct",
    "sacctmgr",
    "salloc",
    "sattach",
    "sbatch",
    "sbcast",
    "scancel",
    "scontrol",
    "scrontab",
    "sdiag",
    "sinfo",
    "sprio",
    "squeue",
    "sreport",
    "srun",
    "sshare",
    "sstat",
    "strigger",
]
_ALTERNATIVES = ("slurmctld", "slurmd", "slurmstepd")
"""Debian unpacks them as slurmctld-wlm ..., and a package's set-up makes the names that daemons need."""
_FROM_THE_TREE = frozenset(
    {"bin", "boot", "etc", "lib", "lib32", "lib64", "libx32", "lost+found", "run", "sbin", "usr", "var"}
)
_SHARED_FILES = ("etc/passwd", "etc/group", "etc/hosts", "etc/hostname", "etc/resolv.conf")
_INSIDE = "run/gpumem-slurm-root"


class TreeSlurm:
    """Slurm as it lies in a tree."""

    def __init__(self, root: Path, layout: Layout) -> None:
        if not root.is_dir():
            raise DevClusterError(f"{root}: no such folder; --slurm-root names a tree that holds a Slurm")
        self._root = root
        self._layout = layout
        self._has_shell = _lies_in(root, "sh") is not None
        if self._program("slurmctld") is None or self._program("slurmd") is None:
            raise DevClusterError(f"{root}: no slurmctld and slurmd in its usr/sbin; is it a Slurm's tree?")

    def command(self, program: str, *args: str) -> List[str]:
        found = self._program(program)
        if found is None:
            raise DevClusterError(f"{self._root}: has no {program}")
        return [str(self._enter), found, *args]

    def prepare(self) -> None:
        inside = self._into_chroot() if self._has_shell else self._over_usr()
        _write_script(self._enter_inside, inside)
        _write_script(
            self._enter,
            "# Runs a program with the Slurm of another tree, in a mount namespace of its own.",
            f'if [ -e "/{_INSIDE}" ]; then exec "$@"; fi',
            "how=",
            '[ "$(id -u)" = 0 ] || how="--user --map-current-user"',
            f'exec {find_program("unshare")} --mount $how {shlex.quote(str(self._enter_inside))} "$PWD" "$@"',
        )
        for name in _CLIENTS:
            found = self._program(name)
            if found is not None:
                _write_script(
                    self._layout.programs / name, f'exec {shlex.quote(str(self._enter))} {found} "$@"'
                )

    @property
    def _enter(self) -> Path:
        return self._layout.library / "enter-slurm-root"

    @property
    def _enter_inside(self) -> Path:
        return self._layout.library / "enter-slurm-root.inside"

    def _program(self, name: str) -> Optional[str]:
        """The path that the program has once we are inside."""
        found = _lies_in(self._root, name)
        if found is None and name in _ALTERNATIVES and _lies_in(self._root, f"{name}-wlm"):
            found = f"/usr/sbin/{name}"
        return found

    def _into_chroot(self) -> str:
        root = shlex.quote(str(self._root))
        lines = ["set -e", f"root={root}", "cwd=$1; shift"]
        for folder in self._own_folders():
            self._make_mount_point(folder)
            lines.append(f'mount --rbind {shlex.quote(folder)} "$root"{shlex.quote(folder)}')
        for name in _SHARED_FILES:
            if (self._root / name).is_file() and Path("/", name).is_file():
                lines.append(f'mount --bind /{name} "$root/{name}"')
        lines += [
            'mount -t tmpfs -o mode=755 tmpfs "$root/run"',
            f'touch "$root/{_INSIDE}"',
            'exec chroot "$root" /bin/sh -c \'cd "$0" 2>/dev/null || cd /; exec "$@"\' "$cwd" "$@"',
        ]
        return "\n".join(lines)

    def _over_usr(self) -> str:
        extra = self._layout.library / "usr"
        (extra / "sbin").mkdir(parents=True)
        for name in _ALTERNATIVES:
            (extra / "sbin" / name).symlink_to(f"{name}-wlm")
        lower = ":".join(str(path) for path in (extra, self._root / "usr", "/usr"))
        return "\n".join(
            [
                "set -e",
                "cwd=$1; shift",
                f"mount -t overlay overlay -o lowerdir={shlex.quote(lower)} /usr",
                'cd "$cwd"',
                'exec "$@"',
            ]
        )

    def _own_folders(self) -> List[str]:
        """This machine's folders that the tree shall show: all but the system's, and the cluster's own."""
        folders = []
        for entry in sorted(os.scandir("/"), key=lambda found: found.name):
            if entry.is_dir(follow_symlinks=False) and entry.name not in _FROM_THE_TREE:
                folders.append(entry.path)
        if self._layout.root.parts[1] in _FROM_THE_TREE:
            folders.append(str(self._layout.root))
        return folders

    def _make_mount_point(self, folder: str) -> None:
        try:
            Path(f"{self._root}{folder}").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DevClusterError(
                f"{self._root}{folder}: {error.strerror}; the tree needs this folder to show {folder} in it"
            ) from None


def _lies_in(root: Path, program: str) -> Optional[str]:
    for folder in ("usr/sbin", "usr/bin", "sbin", "bin"):
        path = root / folder / program
        # Not exists(): a link into /etc/alternatives only resolves inside.
        if path.is_symlink() or path.is_file():
            return f"/{folder}/{program}"
    return None


def _write_script(path: Path, *lines: str) -> None:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
