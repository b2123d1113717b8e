"""Try a site's configuration: start a harmless copy of it without privileges, ask it, throw it away."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence

from slurm_gpumem.devcluster import processes
from slurm_gpumem.devcluster.cluster import make_folders, stop_processes, without_slurm
from slurm_gpumem.devcluster.config import Place
from slurm_gpumem.devcluster.daemons import PortReservation, Starter, make_devices
from slurm_gpumem.devcluster.installation import (
    SYSTEM_FOLDERS,
    Installation,
    SystemSlurm,
    TreeSlurm,
    find_program,
    version,
)
from slurm_gpumem.devcluster.processes import Process
from slurm_gpumem.devcluster.sandbox import Configuration, devices_needed, sandboxed
from slurm_gpumem.devcluster.spec import UNFIT_IN_PATHS, Layout
from slurm_gpumem.errors import DevClusterError
from slurm_gpumem.slurm.client import Version

_POWERLESS = ("bin", "daemon")
"""Accounts that every system has and that own nothing. Not nobody: 26.05 refuses that name."""
_LONGEST_FOLDER = 60
"""The path of a socket is below it, and may have about 100 bytes."""
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
        try:
            done = self.run(["sbatch", "--test-only", "--output=/dev/null", *options, "--wrap", "true"])
        except subprocess.TimeoutExpired:
            return Answer(False, f"no answer within {_ANSWER_S:.0f} s")
        said = [line for line in done.stderr.splitlines() if line.strip()]
        text = said[-1] if said else f"exit code {done.returncode}"
        return Answer(done.returncode == 0, text.replace("sbatch: ", "").replace("error: ", ""))

    def devices(self, options: Sequence[str]) -> str:
        """CUDA_VISIBLE_DEVICES of a job with these options, which is run; "" where it does not run."""
        try:
            done = self.run(["srun", "--quiet", *options, "printenv", "CUDA_VISIBLE_DEVICES"])
        except subprocess.TimeoutExpired:
            return ""
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
    """The version of the slurmctld that a trial would start; DevClusterError where a program is missing."""
    with _folder(None) as layout:
        installation = _prepared(slurm_root, layout)
        for program in ("slurmctld", "slurmd", "sbatch", "srun"):
            installation.command(program)
        find_program("munged")
        return version(installation, {"PATH": SYSTEM_FOLDERS})


@contextlib.contextmanager
def started(conf: Configuration, nodes: Sequence[str], slurm_root: Optional[Path] = None) -> Iterator[Trial]:
    """A trial of a configuration with these of its nodes; DevClusterError where it does not start.

    Run by root it belongs to an account that owns nothing of the site.
    """
    owner = _powerless() if os.geteuid() == 0 else None
    running: List[Process] = []
    with _ended_by_signals(), _folder(owner) as layout, PortReservation(1 + len(nodes)) as reserved:
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
    root = Path(tempfile.mkdtemp(prefix="gpumem-try-", dir=_usable_folder()))
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


def _usable_folder() -> Optional[str]:
    """Where to make a folder that another account can enter and whose path Slurm takes; None: as usual."""
    usual = Path(tempfile.gettempdir()).resolve()
    enterable = all(folder.stat().st_mode & stat.S_IXOTH for folder in (usual, *usual.parents))
    fits = len(os.fsencode(usual)) <= _LONGEST_FOLDER and not UNFIT_IN_PATHS.search(str(usual))
    return None if enterable and fits else "/tmp"


def _powerless() -> pwd.struct_passwd:
    for name in _POWERLESS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise DevClusterError(f"no account {' or '.join(_POWERLESS)} here to run a trial without privileges")


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A lost terminal or a TERM ends the trial in order: its daemons are in sessions of their own."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _write(files: Dict[str, str], folder: Path) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        path.chmod(0o644)
