"""Which Slurm a cluster runs: the system's, or one in a separate tree."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import List, Mapping, Protocol

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
