"""Processes of this cluster: identified by pid, start time and program; stopped with TERM, then KILL."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set

from slurm_gpumem.node.processes import all_pids, parent_of, start_of

POLL_S = 0.01
TERM_PATIENCE_S = 2.0
_KILL_PATIENCE_S = 20.0
_EXEC_PATIENCE_S = 30.0


@dataclass(frozen=True)
class Process:
    """One started program; the start time distinguishes it from a later process with the same pid."""

    program: str
    name: str
    """Its name for people: "slurmd n1"."""
    pid: int
    start_ticks: int
    boot_id: str


def boot_id() -> str:
    """The kernel's id of this boot: start times are relative to it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start(
    argv: Sequence[str],
    *,
    program: str,
    name: str,
    log: Path,
    env: Mapping[str, str],
    cwd: Path,
    owner: Optional[pwd.struct_passwd] = None,
) -> Process:
    """Start a daemon in its own session, its output in `log`, as `owner` if given (requires root)."""
    as_owner = as_user(owner)
    with open(log, "ab") as output:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
            # The users of jobs must be able to reach what daemons create, whatever our own umask.
            umask=0o022,
            **as_owner,
        )
    # The kernel keeps a child's /proc entry until it is waited for, so this cannot miss it.
    ticks = start_of(child.pid)
    # Do not wait here: stop() and alive() do that by pid, in this process or in a later one.
    child.returncode = 0
    process = Process(program, name, child.pid, ticks or 0, boot_id())
    _wait_for_exec(process)
    return process


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """What would end us comes at the end of the block: a daemon that was started is one that was noted."""
    came: List[int] = []
    held: Dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(one) not in (None, signal.SIG_IGN):
                held[one] = signal.signal(one, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
        for number in came[:1]:
            signal.raise_signal(number)


def as_user(owner: Optional[pwd.struct_passwd]) -> Dict[str, Any]:
    """The arguments of Popen that run a program as this user and with none of our groups."""
    return {} if owner is None else {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}


def alive(process: Process) -> bool:
    """Whether that same process still runs: same boot, pid, start time and program."""
    _reap(process.pid)
    if process.boot_id != boot_id() or start_of(process.pid) != process.start_ticks:
        return False
    return _runs_program(process)


def stop(processes: Iterable[Process], patience_s: float = TERM_PATIENCE_S) -> List[Process]:
    """TERM to each that is still the same process, KILL after `patience_s`; the ones that needed KILL."""
    waiting = [process for process in processes if _signal(process, signal.SIGTERM)]
    waiting = _wait_gone(waiting, patience_s)
    killed = [process for process in waiting if _signal(process, signal.SIGKILL)]
    _wait_gone(killed, _KILL_PATIENCE_S)
    return killed


def identify(pid: int) -> Optional[Process]:
    """The process with that pid as it is now; None if it is gone."""
    ticks, program = start_of(pid), program_name(pid)
    return None if ticks is None else Process(program, program, pid, ticks, boot_id())


def working_in(folder: Path, program: str) -> List[int]:
    """Processes of that program whose working directory is `folder`, under whatever path they see it."""
    ours = os.stat(folder)
    found = []
    for pid in all_pids():
        try:
            # Followed, not read: a process in another root or mount namespace shows another path.
            theirs = os.stat(f"/proc/{pid}/cwd")
        except OSError:
            continue  # gone by now, or another user's
        if os.path.samestat(ours, theirs) and program_name(pid) == program:
            found.append(pid)
    return found


def descendants(roots: Iterable[int]) -> List[int]:
    """The processes `roots` and all their descendants, parents first."""
    children: Dict[int, List[int]] = {}
    for pid in all_pids():
        parent = parent_of(pid)
        if parent is not None:
            children.setdefault(parent, []).append(pid)
    found: List[int] = []
    seen: Set[int] = set()
    queue = list(roots)
    while queue:
        pid = queue.pop(0)
        if pid not in seen:
            seen.add(pid)
            found.append(pid)
            queue.extend(children.get(pid, ()))
    return found


def program_name(pid: int) -> str:
    """The name under which the process was started, without its directory; "" if it is gone."""
    try:
        first = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    except OSError:
        return ""
    # A step renames itself to "slurmstepd: [7.batch]".
    return os.path.basename(os.fsdecode(first).split(":")[0])


def _runs_program(process: Process) -> bool:
    # During exec the kernel shows no name.
    return program_name(process.pid) in (process.program, "")


def _wait_for_exec(process: Process) -> None:
    """A launcher (a shell, a change of root) runs first: wait until it has become the program."""
    deadline = time.monotonic() + _EXEC_PATIENCE_S
    while start_of(process.pid) == process.start_ticks and time.monotonic() < deadline:
        if program_name(process.pid) == process.program:
            return
        time.sleep(POLL_S / 2)


def _signal(process: Process, number: int) -> bool:
    if not alive(process):
        return False
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def _wait_gone(processes: List[Process], patience_s: float) -> List[Process]:
    deadline = time.monotonic() + patience_s
    while True:
        processes = [process for process in processes if alive(process)]
        if not processes or time.monotonic() > deadline:
            return processes
        time.sleep(POLL_S)


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass  # started by an earlier command: now a child of init, not ours
