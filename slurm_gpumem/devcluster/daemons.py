"""Start the daemons one after the other and wait until each is ready."""

from __future__ import annotations

import os
import pwd
import random
import re
import socket
import stat
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Callable, Dict, List, Optional, Sequence, Tuple, Type

from slurm_gpumem.devcluster import processes
from slurm_gpumem.devcluster.config import Place
from slurm_gpumem.devcluster.installation import Installation, find_program
from slurm_gpumem.devcluster.processes import Process
from slurm_gpumem.devcluster.spec import Layout
from slurm_gpumem.errors import DevClusterError
from slurm_gpumem.slurm.state.nodes import parse_records

_READY_S = 60.0
_LOG_TAIL = 12
# This throw-away database may be lost in a power cut; waiting for the disk at every table costs seconds.
_UNSAFE_BUT_QUICK = (
    "--innodb-log-file-size=8M",
    "--innodb-flush-log-at-trx-commit=0",
    "--loose-innodb-flush-method=nosync",
    "--loose-innodb-doublewrite=0",
    "--loose-debug-no-sync",
)


class Starter:
    """Starts the daemons of one cluster; calls `started` for each before waiting for it."""

    def __init__(
        self,
        layout: Layout,
        place: Place,
        installation: Installation,
        env: Dict[str, str],
        started: Callable[[Process], None],
        owner: Optional[pwd.struct_passwd] = None,
    ) -> None:
        """`owner`: whom the daemons run as, where that is not ourselves."""
        self._layout = layout
        self._place = place
        self._installation = installation
        self._env = env
        self._started = started
        self._owner = owner
        self._controller: Optional[Process] = None

    def munged(self) -> None:
        """Start munged with this cluster's own key."""
        layout = self._layout
        key = layout.munge / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        if self._owner is not None:
            os.chown(key, self._owner.pw_uid, self._owner.pw_gid)
        argv = [
            find_program("munged"),
            "--foreground",
            f"--key-file={key}",
            f"--socket={layout.munge_socket}",
            f"--pid-file={layout.run / 'munged.pid'}",
            f"--log-file={layout.log / 'munged.log'}",
            f"--seed-file={layout.munge / 'seed'}",
            "--num-threads=2",
        ]
        if not self._place.is_root:
            # Otherwise it refuses a home directory that others cannot enter; nobody else uses this cluster.
            argv.append("--force")
        process = self._start(argv, "munged")
        self._await(process, lambda: _answers_unix(layout.munge_socket), "munged.out")

    def database(self) -> None:
        """Create an empty MariaDB and start it on a unix socket only, then slurmdbd on top of it."""
        layout = self._layout
        user = self._place.user
        own = f"--user={user}"
        done = subprocess.run(
            [
                find_program("mariadb-install-db"),
                "--no-defaults",
                own,
                f"--datadir={layout.database}",
                f"--tmpdir={layout.run}",  # in /tmp, those of other clusters have the same names
                "--auth-root-authentication-method=socket",
                f"--auth-root-socket-user={user}",
                "--skip-test-db",
                "--skip-name-resolve",
                *_UNSAFE_BUT_QUICK,
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self._env,
            check=False,
        )
        if done.returncode != 0:
            raise DevClusterError(f"mariadb-install-db failed:\n{_tail_text(done.stdout + done.stderr)}")
        mariadb = self._start(
            [
                find_program("mariadbd"),
                "--no-defaults",
                own,
                f"--datadir={layout.database}",
                f"--tmpdir={layout.run}",
                f"--socket={layout.mysql_socket}",
                f"--pid-file={layout.run / 'mariadbd.pid'}",
                "--skip-networking",
                "--innodb-buffer-pool-size=128M",
                "--innodb-lock-wait-timeout=900",
                *_UNSAFE_BUT_QUICK,
            ],
            "mariadbd",
        )
        self._await(mariadb, lambda: _answers_unix(layout.mysql_socket), "mariadbd.out")
        slurmdbd = self._start(
            self._installation.command("slurmdbd", "-D"),
            "slurmdbd",
            extra_env={"MYSQL_UNIX_PORT": str(layout.mysql_socket)},
        )
        self._await(slurmdbd, lambda: _answers_tcp(self._place.database_port), "slurmdbd.log")

    def controller(self) -> None:
        """Start slurmctld and wait until it accepts connections."""
        process = self._start(self._installation.command("slurmctld", "-D"), "slurmctld")
        self._controller = process
        self._await(process, lambda: _answers_tcp(self._place.controller_port), "slurmctld.log")

    def nodes(self, names: Sequence[str]) -> None:
        """Start every slurmd and wait until Slurm reports their nodes as idle."""
        waiting = {
            name: self._start(self._installation.command("slurmd", "-D", "-N", name), "slurmd", node=name)
            for name in names
        }
        deadline = time.monotonic() + _READY_S
        while True:
            states = self._node_states()
            idle = {name for name, (state, _) in states.items() if state == "idle"}
            if idle >= set(waiting):
                return
            for name, (state, reason) in states.items():
                if name in waiting and re.search("drain|inval", state):
                    raise DevClusterError(f"node {name} is {state}: {reason}")
            if self._controller is not None:
                # It answers before it has read everything.
                self._check_alive(self._controller, "slurmctld.log")
            for name in set(waiting) - idle:
                self._check_alive(waiting[name], f"slurmd-{name}.log")
            if time.monotonic() > deadline:
                name = sorted(set(waiting) - idle)[0]
                raise DevClusterError(
                    f"node {name} was not idle after {_READY_S:.0f} s:\n{self._tail(f'slurmd-{name}.log')}"
                )
            time.sleep(processes.POLL_S)

    def _node_states(self) -> Dict[str, Tuple[str, str]]:
        """Each node's state and the reason that Slurm gives for it."""
        try:
            # Not sinfo: it leaves out nodes of no partition.
            done = subprocess.run(
                self._installation.command("scontrol", "-a", "-o", "show", "node"),
                capture_output=True,
                text=True,
                timeout=10,
                env=self._env,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {}
        return {
            node["NodeName"]: (node.get("State", "").lower(), node.get("Reason", ""))
            for node in parse_records(done.stdout, "NodeName")
        }

    def _start(
        self,
        argv: List[str],
        program: str,
        *,
        node: Optional[str] = None,
        extra_env: Optional[Dict[str, str]] = None,
    ) -> Process:
        name = program if node is None else f"{program} {node}"
        with processes.signals_held():
            process = processes.start(
                argv,
                program=program,
                name=name,
                log=self._layout.log / f"{name.replace(' ', '-')}.out",
                env={**self._env, **(extra_env or {})},
                cwd=self._layout.root,
                owner=self._owner,
            )
            self._started(process)
        return process

    def _await(self, process: Process, ready: Callable[[], bool], log: str) -> None:
        deadline = time.monotonic() + _READY_S
        while not ready():
            self._check_alive(process, log)
            if time.monotonic() > deadline:
                raise DevClusterError(
                    f"{process.name} was not ready after {_READY_S:.0f} s:\n{self._tail(log)}"
                )
            time.sleep(processes.POLL_S)
        # Another process may have answered on the port while ours failed.
        self._check_alive(process, log)

    def _check_alive(self, process: Process, log: str) -> None:
        if not processes.alive(process):
            raise DevClusterError(f"{process.name} exited right after its start:\n{self._tail(log)}")

    def _tail(self, log: str) -> str:
        out = Path(log).with_suffix(".out").name
        for name in (log, out):
            try:
                text = (self._layout.log / name).read_text(errors="replace")
            except FileNotFoundError:
                continue
            if text.strip():
                return _tail_text(text)
        return f"(nothing in {self._layout.log})"


def _tail_text(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-_LOG_TAIL:])


def _answers_unix(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _answers_tcp(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(("127.0.0.1", port))
        except OSError:
            return False
    return True


# Below the range that the kernel uses for outgoing connections (32768 and up).
_FIRST, _LAST = 20000, 32000


class PortReservation:
    """`count` ports that no other dev cluster takes while this is open."""

    def __init__(self, count: int) -> None:
        self._sockets: List[socket.socket] = []
        candidates = random.sample(range(_FIRST, _LAST), _LAST - _FIRST)
        for port in candidates:
            if len(self._sockets) == count:
                break
            self._try(port)
        if len(self._sockets) < count:
            self.close()
            raise DevClusterError(f"found no {count} free TCP ports between {_FIRST} and {_LAST}")

    @property
    def ports(self) -> List[int]:
        """The reserved ports."""
        return [held.getsockname()[1] for held in self._sockets]

    def close(self) -> None:
        """Release all ports."""
        for held in self._sockets:
            held.close()
        self._sockets = []

    def __enter__(self) -> PortReservation:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def _try(self, port: int) -> None:
        held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            held.bind(("", port))
        except OSError:
            held.close()
            return
        # Set only after binding: binding without it makes another reservation fail, and having it set lets
        # the daemon, which binds with it, succeed while we still hold the port without listening.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._sockets.append(held)


_NULL_DEVICE = os.makedev(1, 3)
_FAMILIES = ("/dev/tty", "/dev/loop", "/dev/ttyS")


def make_devices(folder: Path, count: int) -> List[str]:
    """`count` device files numbered 0, 1 ...: our own as root, the machine's otherwise."""
    if count == 0:
        return []
    try:
        return _own(folder, count)
    except PermissionError:
        return _borrowed(count)


def _own(folder: Path, count: int) -> List[str]:
    paths = [folder / f"gpu{index}" for index in range(count)]
    for path in paths:
        if not path.exists():
            # Another name for /dev/null: opening it is harmless.
            os.mknod(path, 0o666 | stat.S_IFCHR, _NULL_DEVICE)
            path.chmod(0o666)
    return [str(path) for path in paths]


def _borrowed(count: int) -> List[str]:
    # Slurm checks only their kind and name; nobody opens them.
    for family in _FAMILIES:
        paths = [f"{family}{index}" for index in range(count)]
        if all(_is_device(path) for path in paths):
            return paths
    raise DevClusterError(
        f"found no {count} numbered device files ({', '.join(_FAMILIES)}…) to stand for GPUs; "
        "use fewer --gpus-per-node or start the cluster as root"
    )


def _is_device(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
