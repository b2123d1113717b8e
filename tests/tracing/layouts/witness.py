"""Somebody outside of a trace who sees which of the tries (`tries.py`) reach something.

python3 -m tests.tracing.layouts.witness DISK REPORT, as root: makes the targets in DISK/srv and DISK/home,
which are mounted as /srv and /home, prints "ready", and writes REPORT/observed.json when all is tried.
"""

from __future__ import annotations

import ctypes
import json
import os
import pty
import select
import socket
import subprocess
import sys
import time
from typing import Any, Dict, List

from tests.tracing.layouts.tries import LIBC, TRIES, call, tell, text, until

UID, COLLEAGUE = 54321, 54322

_VICTIM = """
import ctypes, os, signal, sys
os.setpgid(0, 0)
ctypes.CDLL(None).prctl(1, 9)  # not left behind
held = ctypes.create_string_buffer(b"kept!", 16)
os.dup2(os.open(sys.argv[1], os.O_RDWR), 5)
os.chdir("/srv/files")
key = ctypes.CDLL(None, use_errno=True).syscall(248, b"user", sys.argv[2].encode(), b"kept", 4, -4)
ctypes.CDLL(None).syscall(250, 5, key, 0x3f3f0000)
print(ctypes.addressof(held), key, flush=True)
signal.pause()
"""
_READ_KEY = """
import ctypes, sys
text = ctypes.create_string_buffer(9)
length = ctypes.CDLL(None).syscall(250, 11, int(sys.argv[1]), text, 9)
sys.stdout.buffer.write(text.raw[:max(0, length)])
"""
_AS_USER = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
_PYTHON = "/usr/bin/python3"


class Target:
    """Something of the world outside, and whether it was reached."""

    def __init__(self, name: str, kind: str, folder: str) -> None:
        words = kind.split()
        self.kind, own = words[-1], "own" in words
        theirs = own or self.kind in ("file", "folder", "process", "key")
        place = "/home/user" if own else "/srv/files" if theirs else "/srv/tries"
        self.disk, self.path = folder, f"{folder}{place}/{name}"
        self.shown: Any = f"{place}/{name}"
        self.owner = UID if theirs else COLLEAGUE
        getattr(self, "_make_" + self.kind)("full" in words)

    def _give(self, path: str, mode: int) -> None:
        os.chmod(path, mode)
        os.chown(path, self.owner, self.owner)
        if not os.path.isdir(path) and path.startswith(self.disk):
            os.link(path, f"{self.disk}/home/user/linked-{os.path.basename(path)}")

    def reached(self) -> bool:
        return bool(getattr(self, "_seen_" + self.kind)())

    def _make_fifo(self, full: bool) -> None:
        os.mkfifo(self.path)
        self._give(self.path, 0o666)
        self.handle, self.full = os.open(self.path, os.O_RDWR | os.O_NONBLOCK), full
        if full:
            os.write(self.handle, b"kept")

    def _seen_fifo(self) -> bool:
        return bool(select.select([self.handle], [], [], 0)[0]) != self.full

    def _listen(self, family: int, kind: int, address: Any) -> None:
        self.socket = socket.socket(family, kind)
        self.socket.bind(address)
        if kind != socket.SOCK_DGRAM:
            self.socket.listen()
        if family == socket.AF_INET:
            self.shown = self.socket.getsockname()[1]
        elif address == self.path:
            self._give(self.path, 0o666)

    def _make_stream(self, _: bool) -> None:
        self._listen(socket.AF_UNIX, socket.SOCK_STREAM, self.path)

    def _make_seqpacket(self, _: bool) -> None:
        self._listen(socket.AF_UNIX, socket.SOCK_SEQPACKET, self.path)

    def _make_dgram(self, _: bool) -> None:
        self._listen(socket.AF_UNIX, socket.SOCK_DGRAM, self.path)

    def _make_tcp(self, _: bool) -> None:
        self._listen(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))

    def _make_udp(self, _: bool) -> None:
        self._listen(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0))

    def _seen_stream(self) -> bool:
        return bool(select.select([self.socket], [], [], 0)[0])

    _seen_seqpacket = _seen_dgram = _seen_tcp = _seen_udp = _seen_stream

    def _make_locked(self, _: bool) -> None:
        text(self.path, "kept")
        self._give(self.path, 0o644)

    def _make_folder(self, _: bool) -> None:
        os.mkdir(self.path)
        self._give(self.path, 0o777)

    def _seen_locked(self) -> bool:
        about = os.stat(self.path)
        name = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
        with open("/proc/locks", encoding="ascii") as file:
            return any(name in line.split() for line in file)

    def _seen_folder(self) -> bool:
        return bool(os.listdir(self.path)) or self._seen_locked()

    def _make_file(self, _: bool) -> None:
        text(self.path, "kept")
        self._give(self.path, 0o666)
        self.state = self._look()

    def _look(self) -> Any:
        about = os.stat(self.path)
        with open(self.path, encoding="ascii") as file:
            return [file.read(), about.st_mode, about.st_nlink, about.st_ctime_ns, os.listxattr(self.path)]

    def _seen_file(self) -> bool:
        return not os.path.exists(self.path) or self._look() != self.state

    def _make_shm(self, _: bool) -> None:
        self.path = self.shown = "/dev/shm/" + os.path.basename(self.path)
        self._make_file(False)

    _seen_shm = _seen_file

    def _make_segment(self, _: bool) -> None:
        self.shown = call(29, 0, ctypes.c_size_t(4096), 0o1666)
        LIBC.shmat.restype = ctypes.c_void_p
        self.at = LIBC.shmat(self.shown, None, 0)

    def _seen_segment(self) -> bool:
        return ctypes.string_at(self.at, 5) == b"tried"

    def _make_semaphore(self, _: bool) -> None:
        self.shown = call(64, 0, 1, 0o1666)

    def _seen_semaphore(self) -> bool:
        return call(66, self.shown, 0, 12) != 0

    def _make_queue(self, full: bool) -> None:
        self.shown, self.full = call(68, 0, 0o1666), full
        if full:
            TRIES["message_sent"][1](self.shown)

    def _seen_queue(self) -> bool:
        with open("/proc/sysvipc/msg", encoding="ascii") as file:
            rows = [line.split() for line in file]
        return next(row[4] != "0" for row in rows if row[1] == str(self.shown)) != self.full

    def _make_process(self, _: bool) -> None:
        text(self.path, "kept")
        self._give(self.path, 0o666)
        words = [*_AS_USER, _PYTHON, "-I", "-S", "-c", _VICTIM, self.path, os.path.basename(self.path)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.address, self.key = map(int, self.process.stdout.readline().split())
        self.shown = self.process.pid
        self.before = self._about()

    def _about(self) -> Any:
        pid = self.process.pid
        found: List[Any] = [os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid)]
        found += [os.sched_getaffinity(pid), call(252, 1, pid)]
        for name in ("limits", "oom_score_adj", "coredump_filter"):
            with open(f"/proc/{pid}/{name}", encoding="ascii") as file:
                found.append(file.read())
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            found += [line for line in file if line.startswith("TracerPid") or "(stopped" in line]
        with open(f"/proc/{pid}/mem", "rb") as memory:
            memory.seek(self.address)
            found.append(memory.read(5))
        left = (f"/srv/files/root-of-{pid}", f"/srv/files/folder-of-{pid}")
        with open(self.path, encoding="ascii") as file:
            return [*found, *map(os.path.exists, left), file.read()]

    def _seen_process(self) -> bool:
        return self.process.poll() is not None or self._about() != self.before

    def _make_key(self, _: bool) -> None:
        self._make_process(False)
        self.shown = self.key

    def _seen_key(self) -> bool:
        words = [*_AS_USER, _PYTHON, "-I", "-S", "-c", _READ_KEY, str(self.key)]
        end = time.monotonic() + 3
        while subprocess.run(words, capture_output=True, check=False).stdout == b"kept":
            if time.monotonic() > end or not self.path.endswith("time_limit"):
                return False
        return True

    def _make_terminal(self, _: bool) -> None:
        self.handle, inner = pty.openpty()
        self.shown, self.full = os.ttyname(inner), False
        os.chown(self.shown, UID, UID)

    _seen_terminal = _seen_fifo


class PosixQueue(Target):
    """A queue of messages with a name."""

    def _make_queue(self, _: bool) -> None:
        self.shown = f"gpumem-tries-{os.getpid()}"
        flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK
        os.umask(0)
        self.handle = call(240, self.shown.encode(), flags, 0o666, None)

    def _seen_queue(self) -> bool:
        call(241, self.shown.encode())
        return bool(select.select([self.handle], [], [], 0)[0])


class Abstract(Target):
    """A socket with a name of no file."""

    def _listen(self, family: int, kind: int, address: Any) -> None:
        self.shown = f"gpumem-{os.getpid()}-{os.path.basename(address)}"
        super()._listen(family, kind, "\0" + self.shown)


_CLASSES = {"posix": PosixQueue, "abstract": Abstract}


def witness(folder: str, report: str) -> None:
    """Make everything, wait until all is tried and what is held is held, and look."""
    targets: Dict[str, Target] = {}

    def make(later: bool) -> None:
        for name, (kind, _) in TRIES.items():
            if kind and kind.startswith("later ") == later:
                made = _CLASSES.get(kind.split()[0], Target)
                targets[name] = made(name, kind, folder)

    make(later=False)
    victims = [one for one in targets.values() if hasattr(one, "address")]
    text(folder + "/srv/files/addresses.json", json.dumps({one.process.pid: one.address for one in victims}))
    print("ready", flush=True)
    try:
        until(report + "/begun")
        make(later=True)
        tell(report, "targets.json", {name: target.shown for name, target in targets.items()})
        until(report + "/tried.json")
        with open(report + "/tried.json", encoding="ascii") as file:
            tried = json.load(file)
        seen = {name: target.reached() for name, target in targets.items()}
        done = {name: answer == "done" for name, answer in tried.items() if name not in seen}
        tell(report, "observed.json", {"reached": {**seen, **done}, "tried": tried})
    finally:
        for one in victims:
            one.process.kill()
        for one in targets.values():
            if one.kind in ("segment", "semaphore", "queue") and isinstance(one.shown, int):
                number, command = {"segment": (31, 0), "semaphore": (66, 0), "queue": (71, 0)}[one.kind]
                LIBC.syscall(number, one.shown, command, 0, None)
            if one.kind == "shm" and os.path.exists(one.path):
                os.unlink(one.path)


if __name__ == "__main__":
    witness(*sys.argv[1:])
