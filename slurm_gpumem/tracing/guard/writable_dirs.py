"""Folders that a command may want to write to: named by it or its environment, or the user's own elsewhere.

Each gets a private copy; everything else is read-only for the command, so a folder that is not found here
costs a refused write and never a file.
"""

from __future__ import annotations

import os
import pwd
import re
import select
import signal
import threading
import time
from contextlib import suppress
from typing import Callable, Dict, Iterable, Iterator, List, Mapping, Sequence, Set, Tuple

from slurm_gpumem.tracing.guard.mounts import KERNEL, Mount, is_below

_ALWAYS = ("/tmp", "/var/tmp")
_FIRST = ("HOME", "TMPDIR", "SCRATCH", "WORK", "PROJECT")
_SCRIPT_BYTES = 1 << 16
_PATH = re.compile(rb"(?<![\w./-])/[\w.+@%-]+(?:/[\w.+@%-]+)*")
_SYSTEM = {"usr", "etc", "bin", "sbin", "lib", "lib32", "lib64", "boot", "proc", "sys", "dev", "run", "snap",
           "nix", "lost+found"}  # fmt: skip
_KERNELS = {"dev", "proc", "sys"}
_DEPTH, _ENTRIES, _SEARCH_S = 3, 4000, 2.0
"""How far the user's own folders are looked for; a file server that is gone must not hold up a trace."""


def find_writable_dirs(command: Sequence[str], environ: Mapping[str, str], mounts: List[Mount]) -> List[str]:
    """Real paths of folders that get a private copy, none of them inside another."""
    named = list(named_folders(command, environ))
    wanted = [path for path in named if not is_below(path, "/run") or path in named[: len(_FIRST) + 1]]
    # A private copy of device files would be one of files that do not work: root may write there.
    wanted = [path for path in wanted if path.split("/")[1] not in _KERNELS]
    found = {_topmost(path, mounts) for path in [*_ALWAYS, *wanted] if _may_write(path)}
    found.update(_owned_elsewhere(mounts))
    return [path for path in sorted(found) if not any(is_below(path, other) for other in found)]


def named_folders(command: Sequence[str], environ: Mapping[str, str]) -> Iterator[str]:
    """The working directory, folders in variables, and those that the command's words and files name.

    Looking at a folder below an automounter's mounts it now: later, nothing new is mounted for the command.
    """
    seen: Set[str] = set()
    for path in _spelled(command, environ):
        try:
            folder = _nearest_folder(os.path.realpath(path))
        except OSError:
            continue  # a link that is not ours to read, as those of others' processes are
        if folder not in seen and folder != "/":
            seen.add(folder)
            yield folder


def _spelled(command: Sequence[str], environ: Mapping[str, str]) -> Iterator[str]:
    yield os.getcwd()
    for name in _FIRST:
        yield environ.get(name) or os.getcwd()
    for value in environ.values():
        if value.startswith("/") and len(value) < 4096 and "\n" not in value:
            yield from value.split(":")
    for word in command:
        yield word.partition("=")[2] if word.startswith("-") else word
        yield from _paths_in(word)


def _paths_in(name: str) -> List[str]:
    """What looks like a path in a script, which may be long."""
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return []
    try:
        return [os.fsdecode(path) for path in _PATH.findall(os.read(handle, _SCRIPT_BYTES))]
    except OSError:
        return []  # a folder
    finally:
        os.close(handle)


def _nearest_folder(path: str) -> str:
    while not os.path.isdir(path) and path != "/":
        path = os.path.dirname(path)
    return path


def _may_write(path: str) -> bool:
    return os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)


def _topmost(path: str, mounts: List[Mount]) -> str:
    """The highest folder above it that is the user's own: siblings of a working directory are theirs, too."""
    points = {mount.point for mount in mounts}
    uid = os.geteuid()
    while path not in points:
        above = os.path.dirname(path)
        if above == "/" or os.stat(above).st_uid != uid:
            break
        path = above
    return path


def silent(mounts: List[Mount]) -> Set[str]:
    """Mounts of servers that do not answer: to look at one would hang."""
    remote = {mount.point for mount in mounts if mount.remote}

    def ask(point: str, tell: Callable[[str], object]) -> None:
        with suppress(OSError):
            os.statvfs(point)
        tell(point)

    def ask_all(tell: Callable[[str], object]) -> None:
        asked = [threading.Thread(target=ask, args=(point, tell)) for point in remote]
        for thread in asked:
            thread.start()
        for thread in asked:
            thread.join()

    return remote - set(_told_in_time(ask_all)) if remote else set()


def _owned_elsewhere(mounts: List[Mount]) -> List[str]:
    """The user's own folders on all file systems."""

    def search(tell: Callable[[str], object]) -> None:
        for path in _searched(mounts):
            tell(path)

    return _told_in_time(search)


def _told_in_time(look: Callable[[Callable[[str], object]], None]) -> List[str]:
    """Paths that a process tells, which may be given up."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        try:
            look(lambda path: os.write(write_end, os.fsencode(path) + b"\0"))
        finally:
            os._exit(0)
    os.close(write_end)
    told, end = b"", time.monotonic() + _SEARCH_S
    while select.select([read_end], [], [], max(0.0, end - time.monotonic()))[0]:
        data = os.read(read_end, 1 << 16)
        if not data:
            break
        told += data
    os.close(read_end)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return [os.fsdecode(path) for path in told.split(b"\0")[:-1]]


def _searched(mounts: List[Mount]) -> Iterator[str]:
    """This machine's own file systems first, each breadth-first."""
    kinds: Dict[str, Mount] = {mount.point: mount for mount in mounts}
    user = _user_name()
    for mount in sorted(kinds.values(), key=lambda mount: (mount.remote, mount.point)):
        if mount.kind not in KERNEL and mount.kind != "autofs" and not _is_of_system(mount.point):
            yield from _below(mount.point, set(kinds), user)


def _is_of_system(path: str) -> bool:
    return path.split("/")[1] in _SYSTEM


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _below(point: str, points: Set[str], user: str) -> Iterator[str]:
    if point != "/" and _may_write(point):
        yield point
        return
    left = _ENTRIES
    level = [point]
    for _ in range(_DEPTH):
        following: List[str] = []
        for folder in level:
            for path in _folders_in(folder, user):
                left -= 1
                if left < 0:
                    return
                if path in points or (folder == "/" and _is_of_system(path)):
                    continue
                if _may_write(path):
                    yield path
                else:
                    following.append(path)
        level = following


def _folders_in(folder: str, user: str) -> Iterable[str]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    ordered: List[Tuple[bool, str]] = sorted((name != user, name) for name in names)
    return [os.path.join(folder, name) for _, name in ordered]
