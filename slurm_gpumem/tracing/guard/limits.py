"""What a traced command may take of the machine: set where the kernel can, watched where it cannot."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, List, Optional, Set, Tuple

from slurm_gpumem.tracing.guard.leftovers import written_mib
from slurm_gpumem.tracing.guard.slots import cpus_of

SCRATCH_MIB = 4096
"""What the command may write into its private copies, and into one file of any other kind."""
_REPORT_MIB = 2048
"""What it may put into the folder that it shares with us."""
_THREADS_EACH = 4
_MANY = 64
"""Processes beyond which their number is what is wrong."""
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "ppc64le": 273}
_LOWEST_BEST_EFFORT = 2 << 13 | 7


@dataclass(frozen=True)
class Limits:
    """How long and how large the command may run."""

    seconds: float = 120.0
    onward_s: Optional[float] = None
    """How long it goes on after its first steps, until it comes to its end by itself; None: a minute, or half
    of a longer time."""
    memory_mib: Optional[int] = None
    """Of host memory, all its processes together; None: most of what is free."""
    processes: int = 512
    """At once."""
    cpus: Optional[int] = None
    """That it may use; None: all."""
    at_once: Optional[int] = None
    """Traces on this machine at once, for which others wait (`Slot`); None: it does not wait."""

    @property
    def onward(self) -> float:
        """Seconds after its first steps."""
        return max(60.0, self.seconds / 2) if self.onward_s is None else self.onward_s

    @property
    def scratch_mib(self) -> int:
        """Its private copies are in memory."""
        return min(SCRATCH_MIB, self.memory_mib or SCRATCH_MIB)


def bound(limits: Limits, slot: int) -> None:
    """In the child, before it starts: it may not crowd out others on this machine."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.nice(5)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, 1, 0, _LOWEST_BEST_EFFORT)
    os.sched_setaffinity(0, cpus_of(slot, limits.cpus, sorted(os.sched_getaffinity(0))))
    # The kernel counts all processes and threads of the user: what there is already must not count.
    _lower(resource.RLIMIT_NPROC, limits.processes * _THREADS_EACH + _threads_of_user())
    _lower(resource.RLIMIT_FSIZE, SCRATCH_MIB << 20)
    _lower(resource.RLIMIT_CORE, 0)


def _lower(what: int, most: int) -> None:
    hard = resource.getrlimit(what)[1]
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(what, (most, most))


def _threads_of_user() -> int:
    found, uid = 0, os.geteuid()
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:
                found += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue
    return found


def exceeded(pid: int, folder: str, limits: Limits, most_mib: int) -> str:
    """Which limit a command is beyond, with all that it started: "processes", "memory: ...", "disk: ..."."""
    tree = [pid, *descendants(pid)]
    # What each sees is quickly read and counts shared pages many times: too much of it says little.
    if held_mib(tree, _seen_kib) > most_mib and held_mib(tree) > most_mib:
        # Processes that only fork share their memory, and are many.
        return "processes" if len(tree) > _MANY else f"memory: more than {most_mib} MiB"
    if len(tree) > limits.processes:
        return "processes"
    if written_mib(folder, _REPORT_MIB) > _REPORT_MIB:
        return f"disk: more than {_REPORT_MIB} MiB"
    return ""


def _share_kib(pid: int) -> Dict[str, int]:
    """Its pages, each divided by the number of processes that have it."""
    return _table(pid, "smaps_rollup") or _seen_kib(pid)


def _seen_kib(pid: int) -> Dict[str, int]:
    sizes = _table(pid, "status")
    return {"Pss": sum(sizes.get(name, 0) for name in ("RssAnon", "RssFile", "RssShmem"))}


def _table(pid: int, name: str) -> Dict[str, int]:
    try:
        lines = Path(f"/proc/{pid}/{name}").read_text().splitlines()
    except OSError:
        return {}  # it has ended, or the kernel has no such file
    pairs = [line.split(":", 1) for line in lines if line.startswith(("Rss", "Pss"))]
    return {name: int(text.split()[0]) for name, text in pairs}


def held_mib(tree: List[int], sizes_kib: Callable[[int], Dict[str, int]] = _share_kib) -> int:
    """Memory of these processes, and of files in memory, as far as none of them has mapped those."""
    mapped, shared, private_files = 0, 0, 0
    files: Dict[Tuple[int, int], int] = {}
    for pid in tree:
        sizes = sizes_kib(pid)
        mapped += sizes.get("Pss", 0)
        shared += sizes.get("Pss_Shmem", 0)
        _add_memory_files(pid, files)
        private_files = max(private_files, _private_kib(pid))
    return mapped + max(0, private_files + sum(files.values()) // 1024 - shared) >> 10


def _add_memory_files(pid: int, files: Dict[Tuple[int, int], int]) -> None:
    """Files without a name (memfd_create): counted for no process until one maps them, and yet in memory."""
    try:
        handles = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for handle in handles:
        path = f"/proc/{pid}/fd/{handle}"
        try:
            if os.readlink(path).startswith("/memfd:"):
                about = os.stat(path)
                files[about.st_dev, about.st_ino] = about.st_blocks * 512
        except OSError:
            continue


def _private_kib(pid: int) -> int:
    """What its private copies hold: one file system in memory, which /dev/shm is a part of."""
    path = f"/proc/{pid}/root/dev/shm"
    try:
        if os.stat(path).st_dev == os.stat("/dev/shm").st_dev:
            return 0  # no private copies
        about = os.statvfs(path)
    except OSError:
        return 0
    return (about.f_blocks - about.f_bfree) * about.f_frsize // 1024


def end(child: subprocess.Popen[bytes]) -> None:
    """End the command and everything that it started."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            pass
    # Without a process namespace there may be others.
    for pid in [*descendants(child.pid), child.pid]:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    child.wait()


def descendants(pid: int) -> List[int]:
    """Processes that it started, and theirs."""
    found: List[int] = []
    waiting, seen = [pid], {pid}
    while waiting:
        one = waiting.pop()
        for child in _children(one) - seen:
            seen.add(child)
            found.append(child)
            waiting.append(child)
    return found


def _children(pid: int) -> Set[int]:
    found: Set[int] = set()
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found.update(map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split()))
    except (OSError, ValueError):
        pass  # it has ended
    return found
