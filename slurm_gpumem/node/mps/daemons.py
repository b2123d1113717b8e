"""MPS control daemons: one per GPU and user, or root's for all users; from a GPU's first job to its last.

An ordinary daemon makes a second user's job wait until the first user's has ended, so each user has their
own, which runs as that user. Only one with a multi-user server takes all users at once: it is root's, its
pipe folder lets users connect and nothing else. A daemon is pinned to one GPU by UUID. Which daemons run is
asked of /proc each time; no file can be wrong about it.
The caller holds the daemon's lock, which no job at another daemon needs: a user may stop theirs at any time.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterable, List, Optional, Tuple

from slurm_gpumem.node import processes
from slurm_gpumem.node.gpus import UUID
from slurm_gpumem.node.jobs import SHARED_UID, RunFolder
from slurm_gpumem.node.processes import Process, ordinary_priority
from slurm_gpumem.other_user import as_user

# The folder of an MPS daemon on a GPU: its pipe and its log, on a small file system of its own.
#
# A user's daemon runs as that user, so the user can fill that folder. On a file system of its own that
# takes nothing from root's files or from another user's daemon. It needs root, and a mount that the job's
# processes can see. Root's daemon for all users writes its log there, which users lengthen by connecting;
# they pass through the folder and can neither list nor change anything in it.

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


_PIPE = "CUDA_MPS_PIPE_DIRECTORY"
_CONTROL = "nvidia-cuda-mps-control"
_SERVER = "nvidia-cuda-mps-server"
_ANSWER_LIMIT = 65536
_OUR_ENVIRONMENT = 8192
"""Bytes; what we start a daemon with, and what systemd adds, is a tenth of that."""
_OUR_ARGUMENTS = 4096
_MOST_SERVERS = 4
"""A daemon of one user has one; what it answers is its owner's choice, and each is another question."""
_SYSTEMD = Path("/run/systemd/system")
MULTI_USER = "-multiuser-server"
"""The option of a daemon for all users, which older drivers do not have."""
_NOWHERE = "/nonexistent"
"""Where no daemon is: a driver without that help would take the question for a command to one."""
_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"


_found_before: Dict[Tuple[Path, str, int], int] = {}
"""By MPS folder, GPU and user: the pid of the daemon that was there; /proc has the last word on it."""


class MpsError(Exception):
    """The daemon cannot be started; the job runs without MPS."""


@dataclass(frozen=True)
class Daemon:
    """A running control daemon or server that we started."""

    process: Process
    uid: int
    uuid: str
    is_server: bool


@dataclass(frozen=True)
class MpsService:
    """MPS on one node."""

    folder: RunFolder
    control: str
    """Path of nvidia-cuda-mps-control."""
    start_timeout_s: float = 4.0
    quit_timeout_s: float = 1.5
    """All of it together stays below the time that the user's next hook waits for the daemon's lock."""
    leave_timeout_s: float = 25.0
    """How long clients may take to leave their server; Slurm's KillWait is 30 s unless a site changes it."""
    tmpfs_mib: int = 0
    """Size of the file system for a user's pipe and log; 0 for none."""

    def available(self) -> bool:
        """Whether this node has MPS at all."""
        return os.access(self.control, os.X_OK)

    def can_share(self) -> bool:
        """Whether this driver's daemon can serve several users at once: its help names the option."""
        try:
            done = subprocess.run(
                [self.control, "-h"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={"PATH": _PATH, _PIPE: _NOWHERE},
                cwd="/",
                timeout=self.quit_timeout_s,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return MULTI_USER.encode() in done.stdout

    def ensure(self, uuid: str, uid: int, *, in_use: bool) -> bool:
        """A daemon that answers; True when it had to be started. MpsError when there is none to be had.

        One that is `in_use` by another job is left alone while it lives, however slow its answers are.
        """
        if not UUID.fullmatch(uuid):
            raise MpsError(f"{uuid!r} is no GPU UUID")
        if self.runs(uuid, uid) and (in_use or self.ask(uuid, uid, "get_server_list") is not None):
            return False
        # Dead, deaf, or left half-made by a crash: away with what is left of it.
        self._clear(uuid, uid)
        self._start(uuid, uid)
        return True

    def stop(self, uuid: str, uid: int) -> None:
        """Ask it to quit, end what does not, remove its folder."""
        if self.runs(uuid, uid):
            self.ask(uuid, uid, "quit -t 1")
        self._clear(uuid, uid)

    def runs(self, uuid: str, uid: int) -> bool:
        """Whether there is a daemon, deaf or not."""
        place = (self.folder.mps, uuid, uid)
        # In a burst every job asks this: /proc is searched only if it is not the one that was found before.
        known = self._daemon(_found_before[place], uid) if place in _found_before else None
        if known is not None and (known.uuid, known.is_server) == (uuid, False):
            return True
        found = [daemon.process.pid for daemon in self.daemons(uuid, uid) if not daemon.is_server]
        _found_before.pop(place, None)
        if found:
            _found_before[place] = found[0]
        return bool(found)

    def daemons(self, uuid: Optional[str] = None, uid: Optional[int] = None) -> List[Daemon]:
        """Our daemons that run now, by the pipe folder in their environment."""
        found = (self._daemon(pid, uid) for pid in processes.named(_CONTROL, uid))
        return [daemon for daemon in found if daemon is not None and uuid in (None, daemon.uuid)]

    def _daemon(self, pid: int, uid: Optional[int]) -> Optional[Daemon]:
        """What that process is, if it is one of our daemons, and that user's."""
        if not processes.is_named(pid, _CONTROL):
            return None
        # Who started it: a setuid program runs as root under any name.
        start, owner = processes.start_of(pid), processes.real_uid_of(pid)
        if start is None or owner is None or uid not in (None, owner):
            return None
        place = _place(self.folder, processes.environment(pid, _OUR_ENVIRONMENT).get(_PIPE, ""))
        if place is None or place[1] != owner:
            return None
        # A command that talks to the daemon has the same name, but no -f or -d behind it.
        arguments = processes.command_line(pid, _OUR_ARGUMENTS)
        is_server = _SERVER in arguments
        if not is_server and not {"-f", "-d"} & set(arguments.split()[1:]):
            return None
        return Daemon(Process(pid, start), owner, place[0], is_server)

    def ask(self, uuid: str, uid: int, *commands: str, timeout_s: Optional[float] = None) -> Optional[str]:
        """What the daemon answers to these commands; None when it does not answer in time.

        The daemon is the user's own process and may say anything, at any length: a little is read. So is the
        command that talks to it, which the user may be able to attach to.
        """
        try:
            with ordinary_priority():
                client = subprocess.Popen(
                    [self.control],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=self._environment(uuid, uid),
                    cwd="/",
                    **as_user(uid),
                )
        except OSError:
            return None
        try:
            text = "".join(f"{command}\n" for command in commands)
            return _converse(client, text, timeout_s or self.quit_timeout_s)
        finally:
            client.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                client.wait(timeout=self.quit_timeout_s)

    def faulted(self, uuid: str, uid: int) -> bool:
        """Whether a server says that a client's fatal fault has put it out of service."""
        for server in _servers(self.ask(uuid, uid, "get_server_list")):
            status = self.ask(uuid, uid, f"get_server_status {server}")
            if status and "FAULT" in status.upper():
                return True
        return False

    def set_default_limit(self, uuid: str, uid: int, mib: int) -> bool:
        """The limit of clients that bring none of their own; also for a server that already runs.

        False when the daemon does not answer.
        """
        answer = self.ask(uuid, uid, f"set_default_device_pinned_mem_limit 0 {mib}M", "get_server_list")
        servers = _servers(answer)
        if servers:
            self.ask(uuid, uid, *(f"set_device_pinned_mem_limit {pid} 0 {mib}M" for pid in servers))
        return answer is not None

    def terminate_clients(self, uuid: str, uid: int, pids: Iterable[int]) -> bool:
        """Take clients from the servers there; what they had on the GPU is dropped, other clients go on.

        The server waits until a client's work on the GPU is done, which takes seconds beside many others, and
        20 s for one that is stopped. False when the daemon does not answer.
        """
        listed = self.ask(uuid, uid, "get_server_list")
        if listed is None:
            return False
        orders = [[f"terminate_client {server} {pid}" for pid in pids] for server in _servers(listed)]
        return all(self.ask(uuid, uid, *some, timeout_s=self.leave_timeout_s) is not None for some in orders)

    def _start(self, uuid: str, uid: int) -> None:
        pipe = self.folder.pipe(uuid, uid)
        deadline = time.monotonic() + self.start_timeout_s
        try:
            make_home(pipe.parent, uid, self.tmpfs_mib)
            # Either way this command itself ends at once; the daemon stays.
            with ordinary_priority():
                done = subprocess.run(
                    self._launcher(uuid, uid),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=self._environment(uuid, uid),
                    cwd="/",
                    start_new_session=True,
                    timeout=self.start_timeout_s,
                    check=False,
                    **({} if _has_systemd() else as_user(uid)),
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            self._clear(uuid, uid)
            raise MpsError(f"cannot start {self.control}: {error}") from None
        while done.returncode == 0 and time.monotonic() < deadline:
            # lexists only: the folder is the user's, and root opens nothing in there.
            if os.path.lexists(pipe / "control"):
                if uid == SHARED_UID:
                    _keep_for_root(pipe)
                return
            time.sleep(0.005)
        self._clear(uuid, uid)
        raise MpsError(f"{self.control} ended with {done.returncode} and made no control socket")

    def _launcher(self, uuid: str, uid: int) -> List[str]:
        if not _has_systemd():
            return [self.control, "-d", *_options(uid)]
        # A unit of its own: what a prolog starts may die with the job's cgroup. A template unit cannot
        # take its user from half of its instance name, so the unit is made for the occasion.
        settings = [f"--setenv={key}={value}" for key, value in self._environment(uuid, uid).items()]
        # A new name each time: systemd may still be busy with the unit of the daemon before.
        unit = f"--unit=gpumem-mps-{uid}-{uuid}-{os.getpid()}"
        who = [f"--uid={uid}", "--collect", "--quiet", "--slice=system.slice"]
        return ["systemd-run", unit, *who, *settings, self.control, "-f", *_options(uid)]

    def _clear(self, uuid: str, uid: int) -> None:
        processes.end((daemon.process for daemon in self.daemons(uuid, uid)), grace_s=0.5)
        remove_home(self.folder.pipe(uuid, uid).parent)

    def _environment(self, uuid: str, uid: int) -> Dict[str, str]:
        return {
            "PATH": _PATH,
            "CUDA_VISIBLE_DEVICES": uuid,
            _PIPE: str(self.folder.pipe(uuid, uid)),
            "CUDA_MPS_LOG_DIRECTORY": str(self.folder.log(uuid, uid)),
        }


def _converse(client: subprocess.Popen[bytes], text: str, timeout_s: float) -> Optional[str]:
    assert client.stdin is not None
    assert client.stdout is not None
    deadline, answer = time.monotonic() + timeout_s, b""
    with client.stdin, client.stdout:
        try:
            client.stdin.write(text.encode())
            client.stdin.close()
        except OSError:
            return None
        while len(answer) < _ANSWER_LIMIT:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([client.stdout], [], [], left)[0]:
                return None
            data = os.read(client.stdout.fileno(), 4096)
            if not data:
                break
            answer += data
    try:
        code = client.wait(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
    return answer.decode(errors="replace").strip() if code == 0 else None


def _servers(answer: Optional[str]) -> List[str]:
    found = [pid for pid in (answer or "").split() if pid.isdigit() and len(pid) <= 10]
    return found[:_MOST_SERVERS]


def _place(folder: RunFolder, pipe: str) -> Optional[Tuple[str, int]]:
    """(UUID, uid) of one of our pipe folders."""
    parts = Path(pipe).parts
    if len(parts) < 4 or Path(*parts[:-3]) != folder.mps or parts[-1] != "pipe":
        return None
    return (parts[-3], int(parts[-2])) if UUID.fullmatch(parts[-3]) and parts[-2].isdigit() else None


def _keep_for_root(pipe: Path) -> None:
    """Take from users what the daemon leaves open to all: its pid, which commands believe, and its lock."""
    for name, mode in (("nvidia-cuda-mps-control.pid", 0o644), ("control_lock", 0o600)):
        with contextlib.suppress(FileNotFoundError):
            (pipe / name).chmod(mode)


def _options(uid: int) -> List[str]:
    return [MULTI_USER] if uid == SHARED_UID else []


def _has_systemd() -> bool:
    return os.geteuid() == 0 and _SYSTEMD.is_dir()
