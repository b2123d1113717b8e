"""Which Slurm a cluster runs: the system's, or one in a separate tree."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import List, Mapping, Optional, Protocol, Tuple

from slurm_gpumem.devcluster.enter import MARKER
from slurm_gpumem.devcluster.spec import Layout
from slurm_gpumem.errors import DevClusterError, SlurmError
from slurm_gpumem.slurm.client import Version, parse_version

SYSTEM_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PACKAGES = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server-core",
    "mariadb-install-db": "mariadb-server-core",
}


class Installation(Protocol):
    """Where the programs of a Slurm are and how to call them."""

    def command(self, program: str, *args: str) -> List[str]:
        """The argument list that runs one of Slurm's programs."""

    def prepare(self) -> None:
        """Make the client commands usable with `Cluster.env`."""


class SystemSlurm:
    """Slurm as installed on this machine."""

    def command(self, program: str, *args: str) -> List[str]:
        return [find_program(program), *args]

    def prepare(self) -> None:
        """Nothing to do: the client commands are on the PATH."""


def find_program(program: str) -> str:
    """The program's path; daemons are in directories that an ordinary user's PATH does not have."""
    path = f"{os.environ.get('PATH', '')}:{SYSTEM_FOLDERS}"
    found = shutil.which(program, path=path)
    if found is None:
        package = _PACKAGES.get(program, "slurm-client")
        raise DevClusterError(f"{program}: not found; install it with: apt-get install {package}")
    return found


def version(installation: Installation, env: Mapping[str, str]) -> Version:
    """The version of the installation's controller, as (22, 5, 8)."""
    argv = installation.command("slurmctld", "-V")
    done = subprocess.run(argv, capture_output=True, text=True, env=dict(env), timeout=20, check=False)
    try:
        return parse_version(done.stdout)
    except SlurmError:
        said = (done.stdout + done.stderr).strip()
        raise DevClusterError(f"{' '.join(argv)}: no version in: {said!r}") from None


# Another Slurm than the system's: in a separate tree, used without installing it.
#
# The tree, made by debootstrap, is entered with chroot, and this machine's own directories are mounted into
# it, in a mount namespace that ends with the program: nobody else sees it, and nothing is left behind.

# Small shell scripts for the cluster's users.


def write_script(path: Path, *lines: str) -> None:
    """Write a shell script that everybody may run."""
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)


def find_python() -> Tuple[str, ...]:
    """Lines that set $python: ours if the user may run it, otherwise the system's."""
    # Ours may be in a home directory that others cannot enter, or outside a tree that we changed into.
    ours = os.path.realpath(sys.executable)
    candidates = " ".join(shlex.quote(path) for path in (ours, "/usr/bin/python3", "python3"))
    return (
        f"for python in {candidates}; do",
        '  command -v "$python" >/dev/null 2>&1 && break',
        "done",
    )


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
_OF_THE_TREE = frozenset(
    ["bin", "boot", "etc", "lib", "lib32", "lib64", "libx32", "lost+found", "run", "sbin", "usr", "var"]
)
_SHARED_FILES = ("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf")


class TreeSlurm:
    """Slurm in a separate tree."""

    def __init__(self, root: Path, layout: Layout) -> None:
        if not root.is_dir():
            raise DevClusterError(f"{root}: no such directory; --slurm-root names a tree with a Slurm")
        self._root = root
        self._layout = layout
        self._enter = layout.library / "enter-slurm-root"
        if self._program("slurmctld") is None or self._program("slurmd") is None:
            raise DevClusterError(f"{root}: no slurmctld and slurmd in its usr/sbin; is there a Slurm in it?")

    def command(self, program: str, *args: str) -> List[str]:
        found = self._program(program)
        if found is None:
            raise DevClusterError(f"{self._root}: has no {program}")
        return [str(self._enter), found, *args]

    def prepare(self) -> None:
        library = self._layout.library
        # Copied, because the users of jobs may not be able to enter the directory of this checkout.
        shutil.copyfile(Path(__file__).with_name("enter.py"), library / "enter.py")
        view = {
            "root": str(self._root),
            "folders": self._folders(),
            "files": [name for name in _SHARED_FILES if self._has_file(name)],
        }
        (library / "view.json").write_text(json.dumps(view) + "\n")
        write_script(
            self._enter,
            "# Runs a program with the Slurm of another tree.",
            f'[ -e /{MARKER} ] && exec "$@"',
            *find_python(),
            f'exec "$python" -IS {library / "enter.py"} {library / "view.json"} "$@"',
        )
        for name in _CLIENTS:
            found = self._program(name)
            if found is not None:
                write_script(self._layout.programs / name, f'exec {self._enter} {found} "$@"')

    def _program(self, name: str) -> Optional[str]:
        """The path of the program inside the tree."""
        for folder in ("usr/sbin", "usr/bin", "sbin", "bin"):
            path = self._root / folder / name
            # Not only exists(): a link into /etc/alternatives only resolves inside.
            if path.is_symlink() or path.is_file():
                return f"/{folder}/{name}"
        return None

    def _folders(self) -> List[str]:
        """This machine's directories visible in the tree: all but the system's, plus the cluster's."""
        names = sorted(entry.name for entry in os.scandir("/") if entry.is_dir(follow_symlinks=False))
        folders = [f"/{name}" for name in names if name not in _OF_THE_TREE]
        if self._layout.root.parts[1] in _OF_THE_TREE:
            folders.append(str(self._layout.root))
        for folder in folders:
            self._make_mount_point(folder)
        return folders

    def _has_file(self, name: str) -> bool:
        return Path(f"{self._root}{name}").is_file() and Path(name).is_file()

    def _make_mount_point(self, folder: str) -> None:
        try:
            Path(f"{self._root}{folder}").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DevClusterError(
                f"{self._root}{folder}: {error.strerror}; the tree needs this folder to show {folder} in it"
            ) from None
