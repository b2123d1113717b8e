"""Namespaces of our own, in which everything is read-only, empty or a private copy, and no network is.

What the command sees is judged at the end from the kernel's own list of mounts: one that could be written
to and is not ours is a reason not to run.
"""

from __future__ import annotations

import os
import stat
from typing import List, NamedTuple, Sequence

from slurm_gpumem.tracing.guard.mounts import all_mounts, is_below, writable
from slurm_gpumem.tracing.guard.places import find_places, named_folders
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
    UNBINDABLE,
    become_root_folder,
    leave_keyrings,
    make_read_only,
    mount,
    unshare,
)

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
_KEPT_IN_RUN = ("/run/nscd", "/run/current-system", "/run/opengl-driver")
_NAME_SERVICES = ("/var/lib/sss/pipes", "/run/nscd", "/var/run/nscd")
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
    places = find_places(command, os.environ, mounts)
    sockets = _listening()
    _unshare()
    mount("", "/", "", REC | PRIVATE)
    base = os.path.join(report, "private")
    os.mkdir(base)
    mount("gpumem", base, "tmpfs", NOSUID | NODEV, f"size={megabytes}m,mode=0700")
    root = os.path.join(base, "root")
    os.mkdir(root)
    mount("", base, "", UNBINDABLE)  # or the tree would have itself inside
    mount("/", root, "", BIND | REC)
    mount("", base, "", PRIVATE)
    make_read_only(root, below=True)
    copies = PrivateCopies(base, root, mounts, hot, report)
    ours = {*_devices(base, root), *_run_folder(base, root), report}
    for place in places:
        copies.cover(place)
    _hide_sockets(base, root, sockets)
    os.makedirs(root + report, exist_ok=True)
    mount(report, root + report, "", BIND)
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
    for path in _KEPT_IN_RUN:
        if os.path.isdir(path):
            os.makedirs(root + path)
            mount(path, root + path, "", BIND | REC)
            make_read_only(root + path, below=True)
    return ["/run"]


def _listening() -> List[str]:
    """Sockets with a path, of everybody on this machine.

    The kernel knows the name that each began with. Some programs give it another one afterwards, in the
    same folder: all that are in it count.
    """
    with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as file:
        rows = [line.rstrip("\n").split(" ", 7) for line in file][1:]
    paths = {os.path.realpath(row[7]) for row in rows if len(row) == 8 and row[7].startswith("/")}
    for folder in {os.path.dirname(path) for path in paths}:
        try:
            with os.scandir(folder) as entries:
                paths.update(entry.path for entry in entries if not (entry.is_file() or entry.is_dir()))
        except OSError:
            continue  # gone, or not ours to read
    return sorted(paths)


def _hide_sockets(base: str, root: str, sockets: Sequence[str]) -> None:
    """A read-only file system does not keep anybody from a socket in it."""
    nothing = os.path.join(base, "nothing")
    with open(nothing, "wb"):
        pass
    for path in sockets:
        if any(is_below(path, folder) for folder in _NAME_SERVICES):
            continue
        try:
            if stat.S_ISSOCK(os.lstat(root + path).st_mode):
                mount(nothing, root + path, "", BIND)
                make_read_only(root + path)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # gone, hidden already, or in a folder that is closed to the user


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
