"""Live processes as /proc shows them, which no crash can falsify."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterable, Iterator, Optional

_READ_LIMIT = 128 * 1024
_MAPS_LIMIT = 4 << 20
_SEARCH_S = 3.0
"""All of /proc is searched within this time or not at all: a full process table takes a tenth of it."""


_AHEAD = -10
_REAL_UID = re.compile(r"^Uid:\s+([0-9]+)", re.MULTILINE)
_PIDFD_SEND_SIGNAL, _SI_QUEUE = 424, -1
"""The system call's number, the same on all architectures."""


def go_ahead_of_jobs() -> None:
    """Give this thread, and those that it starts, a higher priority than jobs have, where we may."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _AHEAD)


@contextlib.contextmanager
def ordinary_priority() -> Iterator[None]:
    """For what this thread starts as a user: that goes ahead of nobody."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    if before >= 0:
        yield
        return
    os.setpriority(os.PRIO_PROCESS, 0, 0)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


@dataclass(frozen=True)
class Process:
    """A process that cannot be mistaken for a later one with the same pid."""

    pid: int
    start: int
    """In clock ticks since boot."""


def stat_fields(pid: int) -> Optional[list[str]]:
    """/proc/PID/stat after the name, which may hold anything; None when it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return None
    return None if len(fields) < 20 or fields[0] in ("Z", "X") else fields


def start_of(pid: int) -> Optional[int]:
    """When it started; None when it is gone."""
    fields = stat_fields(pid)
    return None if fields is None else int(fields[19])


def parent_of(pid: int) -> Optional[int]:
    """Its parent's pid."""
    fields = stat_fields(pid)
    return None if fields is None else int(fields[1])


def uid_of(pid: int) -> Optional[int]:
    """Whose rights it has: root's own while it changes its identity, and of a setuid program."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def real_uid_of(pid: int) -> Optional[int]:
    """Who started it, under whatever name and with whatever rights."""
    match = _REAL_UID.search(status_text(pid))
    return int(match[1]) if match else None


def runs(pid: int, path: Path) -> bool:
    """Whether that very file is the program that it runs; a name, or a copy, is not enough."""
    try:
        return os.path.samefile(f"/proc/{pid}/exe", path)
    except OSError:
        return False


def is_stopped(pid: int) -> bool:
    """Whether a signal or a tracer holds it up."""
    fields = stat_fields(pid)
    return fields is not None and fields[0] in ("T", "t")


def command_line(pid: int, most_bytes: int = _READ_LIMIT) -> str:
    """Its title or arguments, blank-separated; empty when it is gone or a kernel thread."""
    return _read(pid, "cmdline", most_bytes).replace(b"\0", b" ").decode(errors="replace").strip()


def environment(pid: int, most_bytes: int = _READ_LIMIT) -> Dict[str, str]:
    """The environment it was started with, as far as it is read; its user chose it, so believe nothing."""
    text = _read(pid, "environ", most_bytes)
    pairs = (entry.partition(b"=") for entry in text.split(b"\0") if b"=" in entry)
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, _, value in pairs}


def loaded(pid: int) -> str:
    """Programs and libraries that it has mapped, as far as that is read; empty when it is gone."""
    return _read_all(pid, "maps", _MAPS_LIMIT).decode(errors="replace")


def cgroup_text(pid: int) -> str:
    """Its cgroups, as the kernel writes them; empty when it is gone."""
    return _read(pid, "cgroup", _READ_LIMIT).decode(errors="replace")


def status_text(pid: int) -> str:
    """/proc/PID/status; empty when it is gone."""
    return _read(pid, "status", _READ_LIMIT).decode(errors="replace")


def all_pids() -> Iterator[int]:
    """Of every process that is there now."""
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def named(prefix: str, uid: Optional[int] = None) -> Iterator[int]:
    """Pids of processes whose (15 character) name starts so, of one user or of all.

    TimeoutError when the search takes too long, so that nobody can hold it up by starting processes.
    """
    deadline = time.monotonic() + _SEARCH_S
    for entry in os.listdir("/proc"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the search of /proc took more than {_SEARCH_S:g} s")
        # Whose it is comes first: it costs the least, and what other users run is not even looked at.
        if entry.isdigit() and (uid is None or uid_of(int(entry)) == uid) and is_named(int(entry), prefix):
            yield int(entry)


def is_named(pid: int, prefix: str) -> bool:
    """Whether its (15 character) name starts so."""
    return _read(pid, "comm", 16).startswith(prefix[:15].encode())


def end(processes: Iterable[Process], grace_s: float) -> None:
    """TERM, then KILL after `grace_s`; each only while the pid still is that process."""
    left = [process for process in processes if send(process, signal.SIGTERM)]
    deadline = time.monotonic() + grace_s
    while left and time.monotonic() < deadline:
        time.sleep(0.005)
        left = [process for process in left if start_of(process.pid) == process.start]
    for process in left:
        send(process, signal.SIGKILL)


def send(process: Process, number: int, mark: Optional[int] = None) -> bool:
    """Signal exactly that process: a handle on it is taken first and its start compared then.

    With `mark`, a handler that asks for a siginfo sees it as a value of sigqueue's.
    """
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except (AttributeError, OSError):
        handle = None  # a kernel before 5.3: the pid could change hands between the two lines below
    try:
        if start_of(process.pid) != process.start:
            return False
        if mark is not None:
            _queue(handle, process.pid, number, mark)
        elif handle is None:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


def _queue(handle: Optional[int], pid: int, number: int, mark: int) -> None:
    """sigqueue() by a handle where there is one; Python has neither."""
    libc = ctypes.CDLL(None, use_errno=True)
    if handle is None:
        failed = libc.sigqueue(pid, number, ctypes.c_void_p(mark))
    else:
        # siginfo_t: number, errno, code and a gap; then the sender's pid and uid, and the value.
        info = struct.pack("=iiiiiIq", number, 0, _SI_QUEUE, 0, os.getpid(), os.getuid(), mark)
        failed = libc.syscall(_PIDFD_SEND_SIGNAL, handle, number, info.ljust(128, b"\0"), 0)
    if failed:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _read(pid: int, name: str, most_bytes: int) -> bytes:
    try:
        # Unbuffered: one call that asks for no more than that.
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
            return file.read(most_bytes) or b""
    except OSError:
        return b""


def _read_all(pid: int, name: str, most_bytes: int) -> bytes:
    """Of a file that the kernel gives out in pages, whatever is asked for."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read(most_bytes)
    except OSError:
        return b""
