"""A running dev cluster: start it, find it again, run commands in it, stop it."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import pwd
import shutil
import socket
import stat
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from slurm_gpumem.data import FILTER_FILES, data_path
from slurm_gpumem.devcluster import config, hooks, ledger, processes
from slurm_gpumem.devcluster.daemons import PortReservation, Starter, make_devices
from slurm_gpumem.devcluster.installation import (
    SYSTEM_FOLDERS,
    Installation,
    SystemSlurm,
    TreeSlurm,
    find_python,
    version,
    write_script,
)
from slurm_gpumem.devcluster.processes import Process, alive
from slurm_gpumem.devcluster.spec import ClusterSpec, Layout, NodeSpec, Undivided
from slurm_gpumem.errors import DevClusterError
from slurm_gpumem.files import write_atomic

# The data of a started cluster, on disk, so that a later command can find it.

_SCHEMA = 1


@dataclass
class ClusterState:
    """The cluster in one state directory: its spec and the processes started so far."""

    spec: ClusterSpec
    processes: List[Process] = field(default_factory=list)

    def controller(self) -> Optional[Process]:
        """The running slurmctld; a cluster is "up" if it has one."""
        return next((p for p in self.processes if p.program == "slurmctld" and alive(p)), None)


@contextlib.contextmanager
def locked(layout: Layout) -> Iterator[None]:
    """Lock the state directory, so that `up` and `down` never work in it at the same time."""
    try:
        descriptor = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DevClusterError(f"{layout.lock}: {error.strerror}; is this another user's cluster?") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DevClusterError(
                f"{layout.root}: another gpumem devcluster command is at work in this state directory; "
                "wait for it or choose another with --state"
            ) from None
        yield
    finally:
        os.close(descriptor)


def save(layout: Layout, state: ClusterState) -> None:
    """Write the state atomically: a reader sees the old one or the new one."""
    spec = dataclasses.asdict(state.spec)
    spec["state"] = str(state.spec.state)
    spec["slurm_root"] = None if state.spec.slurm_root is None else str(state.spec.slurm_root)
    content = {
        "schema": _SCHEMA,
        "spec": spec,
        "processes": [dataclasses.asdict(process) for process in state.processes],
    }
    write_atomic(layout.state_file, json.dumps(content, indent=1) + "\n")


def load(layout: Layout) -> Optional[ClusterState]:
    """The state, or None if no cluster was started."""
    try:
        content = json.loads(layout.state_file.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DevClusterError(
            f"{layout.state_file}: cannot be read ({error}); is it a dev cluster's?"
        ) from None
    try:
        if content["schema"] != _SCHEMA:
            raise DevClusterError(f"{layout.state_file}: written by another version of gpumem")
        return ClusterState(
            spec=_spec(content["spec"]),
            processes=[Process(**process) for process in content["processes"]],
        )
    except (KeyError, TypeError) as error:
        raise DevClusterError(f"{layout.state_file}: is not a dev cluster's state ({error!r})") from None


def _spec(content: Dict[str, Any]) -> ClusterSpec:
    return ClusterSpec(
        **{
            **content,
            "nodes": tuple(_node(node) for node in content["nodes"]),
            "extra_conf": tuple(content["extra_conf"]),
            "whole_nodes": tuple(content["whole_nodes"]),
            "state": Path(content["state"]),
            "slurm_root": None if content["slurm_root"] is None else Path(content["slurm_root"]),
        }
    )


def _node(fields: Dict[str, Any]) -> NodeSpec:
    # JSON has lists only.
    instances = tuple(Undivided(*kind) for kind in fields["instances"])
    return NodeSpec(**{**fields, "instances": instances})


STATE_VARIABLE = "GPUMEM_DEVCLUSTER"
_OF_SLURM = ("SLURM", "SBATCH_", "SALLOC_", "SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_")
_STOP_ORDER = ("slurmctld", "slurmd", "slurmdbd", "mariadbd", "munged")
_STAND_IN_FILES = ("ledger.py", "standin.py")


class Cluster:
    """One cluster in one state directory."""

    def __init__(self, layout: Layout, known: ClusterState) -> None:
        self.layout = layout
        self.spec = known.spec
        self._state = known

    @property
    def env(self) -> Dict[str, str]:
        """The environment that a process needs to use this cluster."""
        path = os.environ.get("PATH") or SYSTEM_FOLDERS
        env = {
            "PATH": f"{self.layout.programs}:{path}",
            "SLURM_CONF": str(self.layout.slurm_conf),
            "GPUMEM_SITE_CONFIG": str(self.layout.site_config),
            STATE_VARIABLE: str(self.layout.root),
        }
        if self.spec.hooks:
            env["GPUMEM_RUN_DIR"] = str(self.layout.nodes / "%n")
        if self.spec.hooks and self.layout.index.stat().st_uid == os.geteuid():
            # An index of its own: job numbers begin again with every cluster.
            env["GPUMEM_INDEX"] = str(self.layout.index)
        return env

    def run(
        self,
        argv: Sequence[str],
        *,
        check: bool = False,
        timeout_s: float = 60.0,
        user: Optional[str] = None,
        cwd: Optional[Path] = None,
        input: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in this cluster, as `user` if given (requires root)."""
        as_user = {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid}
        return subprocess.run(  # type: ignore[call-overload, no-any-return]
            list(argv),
            env={**without_slurm(os.environ), **self.env, **(env or {})},
            cwd=cwd,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=check,
            extra_groups=None if user is None else [],
            **as_user,
        )

    def node_table(self) -> str:
        """The nodes, their state and their GPUs, for people."""
        return self.run(["sinfo", "-N", "-o", "%.8N %.10P %.10T %.28G %.5c %.8m"], check=True).stdout

    def processes(self) -> List[Process]:
        """The daemons, in the order they were started."""
        return list(self._state.processes)

    def stop(self) -> List[Process]:
        """Stop every process of this cluster; returns those that needed KILL."""
        with locked(self.layout):
            killed = stop_processes(self.layout, self._state.processes)
            self._state.processes = []
            save(self.layout, self._state)
        return killed


def up(spec: ClusterSpec) -> Cluster:
    """Start a cluster. Raises DevClusterError with the reason and leaves nothing running on failure."""
    layout = Layout(spec.state)
    _claim_folder(layout)
    with locked(layout):
        earlier = load(layout)
        if earlier is not None:
            running = earlier.controller()
            if running is not None:
                raise DevClusterError(
                    f"{layout.root}: a dev cluster already runs in this state directory "
                    f"(slurmctld, pid {running.pid})\n"
                    f"Stop it with: gpumem devcluster down --state {layout.root}"
                )
            stop_processes(layout, earlier.processes)
        known = ClusterState(spec)
        save(layout, known)
        cluster = Cluster(layout, known)
        try:
            _start(cluster, known)
        except BaseException:
            stop_processes(layout, known.processes)
            raise
    return cluster


def find(folder: Path) -> Cluster:
    """The cluster that was started in a state directory and still runs."""
    layout = Layout(folder)
    known = load(layout)
    if known is None or known.controller() is None:
        raise DevClusterError(
            f"{folder}: no dev cluster runs in this state directory\nStart one with: gpumem devcluster up"
        )
    return Cluster(layout, known)


def down(folder: Path) -> List[Process]:
    """Stop whatever still runs of the cluster in a state directory, complete or not."""
    layout = Layout(folder)
    known = load(layout)
    if known is None:
        raise DevClusterError(f"{folder}: no dev cluster was started in this state directory")
    return Cluster(layout, known).stop()


def slurm_root_in_use() -> Optional[Path]:
    """The tree of the dev cluster that this process's environment names; None outside one."""
    folder = os.environ.get(STATE_VARIABLE)
    known = load(Layout(Path(folder))) if folder else None
    return known.spec.slurm_root if known else None


def without_slurm(environ: Mapping[str, str]) -> Dict[str, str]:
    """The environment without variables of another Slurm: we may be inside one of its jobs."""
    return {key: value for key, value in environ.items() if not key.startswith(_OF_SLURM)}


def _start(cluster: Cluster, known: ClusterState) -> None:
    spec, layout = cluster.spec, cluster.layout
    make_folders(layout)
    installation: Installation = (
        SystemSlurm() if spec.slurm_root is None else TreeSlurm(spec.slurm_root, layout)
    )
    installation.prepare()
    env = {
        "PATH": SYSTEM_FOLDERS,
        "LANG": "C.UTF-8",
        "SLURM_CONF": str(layout.slurm_conf),
    }

    def started(process: Process) -> None:
        # Written before waiting: if we are killed, the next `up` knows what to stop.
        known.processes.append(process)
        save(layout, known)

    names = [node.name for node in spec.nodes]
    with PortReservation(2 + len(names)) as reserved:
        controller_port, database_port, *node_ports = reserved.ports
        place = config.Place(
            hostname=socket.gethostname().split(".")[0],
            user=pwd.getpwuid(os.geteuid()).pw_name,
            is_root=os.geteuid() == 0,
            controller_port=controller_port,
            node_ports=dict(zip(names, node_ports)),
            database_port=database_port,
            devices=make_devices(layout.devices, max(node.devices for node in spec.nodes)),
        )
        _write_files(spec, layout, place, version(installation, env))
        starter = Starter(layout, place, installation, env, started)
        starter.munged()
        if spec.accounting:
            starter.database()
        starter.controller()
        starter.nodes(names)


def _write_files(
    spec: ClusterSpec, layout: Layout, place: config.Place, slurm_version: tuple[int, ...]
) -> None:
    layout.slurm_conf.write_text(config.slurm_conf(spec, layout, place, slurm_version))
    (layout.conf / "gres.conf").write_text(config.gres_conf(spec, place))
    (layout.conf / "cgroup.conf").write_text(config.cgroup_conf(slurm_version))
    layout.site_config.write_text(config.site_config(spec, layout))
    hooks.install(layout, whole=spec.hooks)
    if spec.accounting:
        (layout.conf / "slurmdbd.conf").write_text(config.slurmdbd_conf(layout, place))
    if spec.job_submit_lua is not None:
        _copy_lua(Path(spec.job_submit_lua), layout.conf)
    if spec.cli_filter:
        for name in FILTER_FILES:
            shutil.copyfile(data_path("lua", name), layout.conf / name)
    ledger.create(layout.ledger, {node.name: _stand_ins(node) for node in spec.nodes})
    _install_stand_in(layout)
    for folder in (layout.conf, layout.library, layout.hooks):
        _let_read(folder)
    if spec.accounting:
        (layout.conf / "slurmdbd.conf").chmod(0o600)


def _stand_ins(node: NodeSpec) -> List[ledger.StandIn]:
    """In the order of the device files: shared GPUs, then the others."""
    whole = [ledger.StandIn(node.gpu_memory_mib, node.gpu_type)] * node.gpus
    others = [
        ledger.StandIn(kind.memory_mib, kind.gpu if kind.profile else kind.gpu_type, kind.profile)
        for kind in node.instances
        for _ in range(kind.number)
    ]
    return [*whole, *others]


def _let_read(folder: Path) -> None:
    """Let everybody read what is in a directory, whatever our umask; scripts stay executable."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)


def _copy_lua(script: Path, folder: Path) -> None:
    if not script.is_file():
        raise DevClusterError(f"{script}: no such job_submit.lua")
    for beside in script.parent.glob("*.lua"):
        shutil.copyfile(beside, folder / beside.name)
    shutil.copyfile(script, folder / "job_submit.lua")


def _install_stand_in(layout: Layout) -> None:
    # Copied, because the users of jobs may not be able to enter the directory of this checkout.
    package = layout.library / "slurm_gpumem" / "devcluster"
    package.mkdir(parents=True)
    for name in _STAND_IN_FILES:
        shutil.copyfile(Path(__file__).with_name(name), package / name)
    write_script(
        layout.programs / "gpumem-standin",
        "# Simulates a training job on the stand-in GPUs of this dev cluster.",
        *find_python(),
        f"export PYTHONPATH={layout.library} PYTHONUNBUFFERED=1 {STATE_VARIABLE}={layout.root}",
        'exec "$python" -m slurm_gpumem.devcluster.standin "$@"',
    )


def _claim_folder(layout: Layout) -> None:
    """Take ownership of the state directory, or raise an error that says whose it is."""
    root = layout.root
    try:
        root.mkdir(mode=0o755, parents=True, exist_ok=True)
        found = root.stat()
        strange = not layout.state_file.exists() and any(entry.name != "lock" for entry in root.iterdir())
    except OSError as error:
        raise DevClusterError(f"{root}: {error.strerror}; choose another directory with --state") from None
    if strange:
        raise DevClusterError(
            f"{root}: is not empty and does not belong to a dev cluster; choose another with --state"
        )
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise DevClusterError(f"{root}: must belong to you and be writable by you only (chmod 755)")
    # Users whose jobs run here must be able to enter, whatever our umask.
    root.chmod(0o755)
    closed = [parent for parent in root.parents if not parent.stat().st_mode & stat.S_IXOTH]
    if closed and os.geteuid() == 0:
        raise DevClusterError(
            f"{root}: other users cannot enter {closed[-1]}, so their jobs could not use this cluster; "
            "choose another directory with --state"
        )


def make_folders(layout: Layout) -> None:
    """Empty directories: saved state of an earlier cluster would show its nodes idle before they are."""
    for folder in (*layout.private_folders(), *layout.public_folders()):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    for folder in layout.private_folders():
        folder.chmod(0o700)
    for folder in layout.public_folders():
        folder.chmod(0o755)


def stop_processes(layout: Layout, started: Sequence[Process]) -> List[Process]:
    """Stop a cluster's daemons and jobs; the controller first, so that it starts no more jobs."""
    killed: List[Process] = []
    for program in _STOP_ORDER:
        killed += processes.stop(process for process in started if process.program == program)
        if program == "slurmd":
            # A child of slurmd that hangs between fork and exec hears no TERM.
            left = map(processes.identify, processes.working_in(layout.root, program))
            killed += processes.stop((process for process in left if process is not None), patience_s=0)
            killed += _stop_steps(layout)
            killed += processes.stop(hooks.samplers(layout))
    return killed


def _stop_steps(layout: Layout) -> List[Process]:
    """End the jobs that still run: slurmstepd works in its slurmd's directory, and jobs are its children."""
    keepers = processes.working_in(layout.root, "slurmstepd")
    family = [processes.identify(pid) for pid in processes.descendants(keepers)]
    jobs = [p for p in family if p is not None and p.pid not in keepers]
    steps = [p for p in family if p is not None and p.pid in keepers]
    killed = processes.stop(jobs)
    # A step ignores TERM and would wait for the controller.
    processes.stop(steps, patience_s=0)
    return killed
