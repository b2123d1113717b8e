"""Namespaces of our own, in which everything is read-only, empty or a private copy, and no network is.

All that is seen of files goes through overlays: what lies in them has inodes of its own, so a FIFO has nobody
at its other end, a socket nobody who listens, and a lock nobody who would wait for it.

What the command sees is judged at the end from the kernel's own list of mounts: one that could be written
to and is not ours is a reason not to run.
"""

from __future__ import annotations

import os
from typing import List, NamedTuple, Sequence

from slurm_gpumem.tracing.guard.mounts import all_mounts, writable
from slurm_gpumem.tracing.guard.private_copy import PrivateCopies
from slurm_gpumem.tracing.guard.syscalls import (
    BIND,
    NEWIPC,
    NEWNET,
    NEWNS,
    NEWPID,
    NEWUSER,
    NODEV,
    NOSUID,
    PRIVATE,
    REC,
    become_root_folder,
    leave_keyrings,
    make_read_only,
    mount,
    unshare,
)
from slurm_gpumem.tracing.guard.writable_dirs import find_writable_dirs, named_folders, silent

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
_KEPT_IN_RUN = ("/run/current-system", "/run/opengl-driver")
"""Links of NixOS to its programs."""
_NAME_SERVICES = ("/var/lib/sss/pipes/nss", "/run/nscd/socket")
"""Sockets that answer who a user is; all others are out of reach."""


class World(NamedTuple):
    """A private world that this process is in."""

    base: int
    """A handle of the folder in memory that holds all copies."""
    copies: PrivateCopies


def enter(report: str, megabytes: int, command: Sequence[str]) -> World:
    """Make it and move in; OSError says why it cannot be. `report` is shared with the outside."""
    hot = list(named_folders(command, os.environ))
    mounts = all_mounts()
    left_out = {report, *silent(mounts)}
    places = find_writable_dirs(command, os.environ, mounts)
    _unshare()
    mount("", "/", "", REC | PRIVATE)
    base = os.path.join(report, "private")
    os.mkdir(base)
    mount("gpumem", base, "tmpfs", NOSUID | NODEV, f"size={megabytes}m,mode=0700")
    root = os.path.join(base, "root")
    os.mkdir(root)
    os.chmod(root, 0o755)
    mount(root, root, "", BIND)
    copies = PrivateCopies(base, root, mounts, hot, left_out)
    copies.show_all()
    for path in ("/proc", "/sys"):
        mount(path, root + path, "", BIND | REC)
        make_read_only(root + path, below=True)
    ours = {*_devices(base, root), *_run_folder(base, root), report}
    for place in places:
        copies.cover(place)
    _name_services(root)
    os.makedirs(root + report, exist_ok=True)
    mount(report, root + report, "", BIND)
    make_read_only(root)
    handle = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    become_root_folder(root)
    leave_keyrings()
    _loopback_up()
    left = writable(all_mounts(), ours | copies.points)
    if left:
        raise OSError(0, f"{left[0].point} ({left[0].kind}) would be writable")
    return World(handle, copies)


def _unshare() -> None:
    uid, gid = os.geteuid(), os.getegid()
    unshare(NEWUSER | NEWNS | NEWPID | NEWIPC | NEWNET)
    for name, text in (
        ("self/setgroups", "deny"),
        ("self/uid_map", f"{uid} {uid} 1"),
        ("self/gid_map", f"{gid} {gid} 1"),
        # With one of its own the command could mount the user's control groups, and end what is in them.
        ("sys/user/max_cgroup_namespaces", "0"),
    ):
        with open(f"/proc/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _devices(base: str, root: str) -> List[str]:
    """A /dev with the few devices that programs need; /dev/shm is empty and terminals are its own."""
    made = os.path.join(base, "dev")
    os.makedirs(root + "/dev", exist_ok=True)
    os.mkdir(made)
    for name in ("shm", "pts"):
        os.mkdir(os.path.join(made, name))
    for name, to in _LINKS.items():
        os.symlink(to, os.path.join(made, name))
    mount(made, root + "/dev", "", BIND)
    for name in filter(lambda name: os.path.exists(f"/dev/{name}"), _DEVICES):
        with open(os.path.join(made, name), "wb"):
            pass
        mount(f"/dev/{name}", f"{root}/dev/{name}", "", BIND)
        make_read_only(f"{root}/dev/{name}")
    mount("devpts", root + "/dev/pts", "devpts", NOSUID, "newinstance,ptmxmode=0666,mode=0620")
    memory = os.path.join(base, "shm")
    os.mkdir(memory)
    os.chmod(memory, 0o1777)
    mount(memory, root + "/dev/shm", "", BIND)
    make_read_only(root + "/dev")
    return ["/dev/pts", "/dev/shm"]


def _run_folder(base: str, root: str) -> List[str]:
    """An empty /run: sockets of services, agents and the session are there."""
    if not os.path.isdir(root + "/run") or os.path.islink("/run"):
        return []
    made = os.path.join(base, "run")
    session = f"{made}/user/{os.geteuid()}"
    os.makedirs(session)
    os.chmod(session, 0o700)
    mount(made, root + "/run", "", BIND)
    for path in filter(os.path.islink, _KEPT_IN_RUN):
        os.symlink(os.readlink(path), root + path)
    return ["/run"]


def _name_services(root: str) -> None:
    """Their sockets themselves: what is shown of others has nobody who listens."""
    for path in map(os.path.realpath, filter(os.path.exists, _NAME_SERVICES)):
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        if not os.path.lexists(root + path):
            with open(root + path, "wb"):
                pass
        mount(path, root + path, "", BIND)
        make_read_only(root + path)


def own_processes() -> None:
    """In the first process of the namespace: a /proc that shows it and nobody else.

    In a container whose /proc is partly hidden the kernel allows none; the one that is there shows other
    processes, which cannot be reached.
    """
    try:
        mount("proc", "/proc", "proc", NOSUID | NODEV)
    except PermissionError:
        return


def _loopback_up() -> None:
    """A network namespace starts with its loopback down; distributed training talks over it."""
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sh14x", b"lo", 1 | 64)  # IFF_UP | IFF_RUNNING
        fcntl.ioctl(sock, 0x8914, request)  # SIOCSIFFLAGS
