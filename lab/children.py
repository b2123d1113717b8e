"""Run functions in forked children: many at once, each with a time limit, none able to stop the rest.

The parent imports the heavy libraries once and never touches CUDA, so a child starts in milliseconds
with everything loaded and a CUDA context of its own. That, the time limits and the deaths of single children
are what joblib does not offer; plain parallel work (fits, simulations, replays) goes through joblib.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional

Answer = Dict[str, Any]


@dataclass
class Child:
    """A running child and what it has said so far."""

    pid: int
    pipe: int
    tag: Any
    started: float
    deadline: float
    log: str
    said: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True)
class Ended:
    """A child that has ended: its answer, or why there is none."""

    tag: Any
    answer: Optional[Answer]
    error: str
    seconds: float


class Children:
    """A set of forked children; `start` one, then `wait` for those that end."""

    def __init__(self) -> None:
        self._running: Dict[int, Child] = {}
        self._selector = selectors.DefaultSelector()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, tag: Any, work: Callable[[], Answer], limit_seconds: float) -> None:
        """Fork a child that runs `work` and sends back its answer."""
        sys.stdout.flush()
        sys.stderr.flush()
        handle, log = tempfile.mkstemp(prefix="gpumem-child-")
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            _be_child(work, read, write, handle)
        os.close(write)
        os.close(handle)
        now = time.monotonic()
        child = Child(pid, read, tag, now, now + limit_seconds, log)
        self._running[pid] = child
        self._selector.register(read, selectors.EVENT_READ, child)

    def wait(self, seconds: float) -> List[Ended]:
        """Those that end within `seconds`; returns as soon as one does. Kills what is past its limit."""
        ended: List[Ended] = []
        for key, _ in self._selector.select(seconds) if self._running else ():
            child: Child = key.data
            chunk = os.read(child.pipe, 1 << 16)
            if chunk:
                child.said += chunk
            else:
                ended.append(self._close(child, ""))
        now = time.monotonic()
        for child in [c for c in self._running.values() if now > c.deadline]:
            _kill(child.pid)
            ended.append(self._close(child, f"time limit: killed after {now - child.started:.0f} s"))
        return ended

    def _close(self, child: Child, error: str) -> Ended:
        self._selector.unregister(child.pipe)
        os.close(child.pipe)
        del self._running[child.pid]
        _, status = os.waitpid(child.pid, 0)
        tail = _read_tail(child.log)
        os.unlink(child.log)
        answer = None
        if not error:
            answer, error = _decode(child.said, status, tail)
        return Ended(child.tag, answer, error, time.monotonic() - child.started)


def _be_child(work: Callable[[], Answer], read: int, write: int, log: int) -> None:
    code = 1
    try:
        os.close(read)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.dup2(log, 1)
        os.dup2(log, 2)
        data = json.dumps(work(), separators=(",", ":")).encode()
        while data:
            data = data[os.write(write, data) :]
        code = 0
    except BaseException:  # noqa: BLE001 - the child's end is its error; the parent reads the log's tail
        os.write(2, traceback.format_exc().encode())
    finally:
        # No interpreter shutdown: it would run the parent's exit handlers and tear CUDA down slowly.
        os._exit(code)


def _decode(said: bytearray, status: int, tail: str) -> tuple[Optional[Answer], str]:
    if os.WIFSIGNALED(status):
        return None, f"died of signal {os.WTERMSIG(status)}: {tail}"
    if os.waitstatus_to_exitcode(status) != 0:
        return None, tail or "ended without a word"
    try:
        answer: Answer = json.loads(said)
        return answer, ""
    except ValueError:
        return None, f"unreadable answer of {len(said)} bytes: {tail}"


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it ended by itself in the meantime; waitpid still collects it


def _read_tail(path: str, size: int = 300) -> str:
    with open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - size))
        return " ".join(file.read().decode(errors="replace").split())
