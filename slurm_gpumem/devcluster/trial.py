"""Try a site's configuration: start a harmless copy of it without privileges, ask it, throw it away."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence

from slurm_gpumem.devcluster import processes
from slurm_gpumem.devcluster.cluster import make_folders, stop_processes, without_slurm
from slurm_gpumem.devcluster.config import Place
from slurm_gpumem.devcluster.daemons import Starter
from slurm_gpumem.devcluster.devices import make_devices
from slurm_gpumem.devcluster.installation import SYSTEM_FOLDERS, Installation, SystemSlurm, version
from slurm_gpumem.devcluster.layout import Layout
from slurm_gpumem.devcluster.ports import PortReservation
from slurm_gpumem.devcluster.processes import Process
from slurm_gpumem.devcluster.sandbox import Configuration, devices_needed, sandboxed
from slurm_gpumem.devcluster.tree import TreeSlurm
from slurm_gpumem.slurm.client import Version

_POWERLESS = "bin"
"""An account that every system has and that owns nothing. Not nobody: 26.05 refuses that name."""
_ANSWER_S = 20.0


class Answer(NamedTuple):
    """What came of a request."""

    accepted: bool
    said: str
    """The first line of what Slurm said."""


class Trial:
    """The running copy of a configuration."""

    def __init__(self, layout: Layout, owner: Optional[pwd.struct_passwd]) -> None:
        self._layout = layout
        self._owner = owner

    def test_only(self, options: Sequence[str]) -> Answer:
        """Whether a job with these options could run, by `sbatch --test-only`."""
        done = self.run(["sbatch", "--test-only", "--output=/dev/null", *options, "--wrap", "true"])
        said = [line for line in done.stderr.splitlines() if line.strip()]
        text = said[-1] if said else f"exit code {done.returncode}"
        return Answer(done.returncode == 0, text.replace("sbatch: ", "").replace("error: ", ""))

    def devices(self, options: Sequence[str]) -> str:
        """CUDA_VISIBLE_DEVICES of a job with these options, which is run."""
        done = self.run(["srun", "--quiet", *options, "printenv", "CUDA_VISIBLE_DEVICES"])
        return done.stdout.strip()

    def run(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command in the trial, as its owner."""
        return subprocess.run(
            list(argv),
            env={
                **without_slurm(os.environ),
                "PATH": f"{self._layout.programs}:{SYSTEM_FOLDERS}",
                "SLURM_CONF": str(self._layout.slurm_conf),
            },
            cwd=self._layout.root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            check=False,
            **processes.as_user(self._owner),
        )


def installed_version(slurm_root: Optional[Path] = None) -> Version:
    """The version of the slurmctld that a trial would start; DevClusterError where there is none."""
    with _folder(None) as layout:
        return version(_prepared(slurm_root, layout), {"PATH": SYSTEM_FOLDERS})


@contextlib.contextmanager
def started(conf: Configuration, nodes: Sequence[str], slurm_root: Optional[Path] = None) -> Iterator[Trial]:
    """A trial of a configuration with these of its nodes; DevClusterError where it does not start.

    Run by root it belongs to an account that owns nothing of the site.
    """
    owner = pwd.getpwnam(_POWERLESS) if os.geteuid() == 0 else None
    running: List[Process] = []
    with _folder(owner) as layout, PortReservation(1 + len(nodes)) as reserved:
        installation = _prepared(slurm_root, layout)
        env = {"PATH": SYSTEM_FOLDERS, "LANG": "C.UTF-8", "SLURM_CONF": str(layout.slurm_conf)}
        controller_port, *node_ports = reserved.ports
        place = Place(
            hostname=socket.gethostname().split(".")[0],
            user=(owner or pwd.getpwuid(os.geteuid())).pw_name,
            is_root=False,
            controller_port=controller_port,
            node_ports=dict(zip(nodes, node_ports)),
            database_port=0,
            devices=make_devices(layout.devices, devices_needed(conf, nodes)),
        )
        _write(sandboxed(conf, nodes, layout, place, version(installation, env)), layout.conf)
        starter = Starter(layout, place, installation, env, running.append, owner)
        try:
            starter.munged()
            starter.controller()
            starter.nodes(nodes)
            reserved.close()
            yield Trial(layout, owner)
        finally:
            stop_processes(layout, running)


def _prepared(slurm_root: Optional[Path], layout: Layout) -> Installation:
    installation: Installation = SystemSlurm() if slurm_root is None else TreeSlurm(slurm_root, layout)
    installation.prepare()
    return installation


@contextlib.contextmanager
def _folder(owner: Optional[pwd.struct_passwd]) -> Iterator[Layout]:
    """A fresh folder, owned by the trial's owner and gone afterwards."""
    root = Path(tempfile.mkdtemp(prefix="gpumem-try-"))
    try:
        root.chmod(0o755)
        layout = Layout(root)
        make_folders(layout)
        if owner is not None:
            for path in (root, *layout.private_folders(), *layout.public_folders()):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        yield layout
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _write(files: Dict[str, str], folder: Path) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        path.chmod(0o644)
