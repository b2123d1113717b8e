"""Processes that leave their MPS server before they end, so that the server's other clients go on.

A client that ends with work on the GPU takes all clients of its server along. `terminate_client` takes a
client from its server in a few milliseconds and harms nobody else; it is the server's owner's to say, so root
says it. A process that is about to end asks over a socket (prolog/gpumem_end.c); the kernel says who it is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import threading
from collections import defaultdict
from pathlib import Path
from typing import Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.files import primary_group, remove, write_atomic
from slurm_gpumem.node import jobs, processes
from slurm_gpumem.node.jobs import NodeJob, RunFolder
from slurm_gpumem.node.log import log
from slurm_gpumem.node.mps.daemons import MpsService
from slurm_gpumem.node.processes import Process
from slurm_gpumem.node.sampler.pid_to_job import Owners, job_of_step

_CREDENTIALS = struct.Struct("3i")
_MOST_OF_A_USER = 64
"""A user's own daemon may hang, for seconds: more requests of that user are answered at once, with no."""
_MOST_WAITING = 256


class Exits:
    """Takes processes from their MPS servers: one question to a daemon at a time for all of a user that wait.

    Without the daemon's lock: nothing here starts or stops a daemon, and the process cannot wait for a hook.
    At a server that users share nobody waits for another user's process, which may be stopped.
    """

    def __init__(self, folder: RunFolder, config: NodeConfig) -> None:
        self._service = MpsService(folder, config.mps_control)
        self._guard = threading.Lock()
        self._turns: Dict[Tuple[str, int, int], threading.Lock] = defaultdict(threading.Lock)
        self._waiting: Dict[Tuple[str, int, int], Set[int]] = defaultdict(set)

    def take(self, job: NodeJob, pids: Iterable[int]) -> bool:
        """Take processes of a job from the servers that serve it; False where a daemon does not answer."""
        own = {pid for pid in pids if processes.real_uid_of(pid) == job.uid}
        answers = [self._take((uuid, job.daemon_uid, job.uid), own) for uuid in job.gpus if own]
        return all(answers)

    def _take(self, whose: Tuple[str, int, int], pids: Set[int]) -> bool:
        with self._guard:
            turn = self._turns[whose]
            self._waiting[whose] |= pids
        with turn:
            with self._guard:
                batch = self._waiting.pop(whose, set())
            # Who had the turn before us may have taken ours along.
            return not batch or self._service.terminate_clients(*whose[:2], batch)


class EndServer:
    """Answers processes that ask to be let go, each in a thread of its own."""

    def __init__(self, folder: RunFolder, exits: Exits) -> None:
        self._folder = folder
        self._exits = exits
        self._listener = _listen(folder.end_socket)
        self._thread = threading.Thread(target=self._run, name="ends", daemon=True)

    def start(self) -> None:
        """From now on; the socket is there already."""
        self._thread.start()

    def close(self) -> None:
        """No more requests; those under way end by themselves."""
        remove(self._folder.end_socket)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        """Nothing here waits for anybody: who comes next may be another user's process."""
        while True:
            try:
                channel, _ = self._listener.accept()
            except OSError:
                return
            try:
                self._begin(channel)
            except (OSError, RuntimeError) as error:  # RuntimeError: no more threads
                channel.close()
                log(self._folder.root, f"a process that asked to leave its MPS server: {error}")

    def _begin(self, channel: socket.socket) -> None:
        pid, uid, _ = _CREDENTIALS.unpack(
            channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        whose = f"ends of {uid}"
        if sum(thread.name == whose for thread in threading.enumerate()) >= _MOST_OF_A_USER:
            channel.close()
        else:
            threading.Thread(target=self._serve, args=(channel, pid, uid), name=whose, daemon=True).start()

    def _serve(self, channel: socket.socket, pid: int, uid: int) -> None:
        """Closing the channel is the answer: whoever asked goes on and ends."""
        try:
            with channel:
                job = self.job_of(pid, uid)
                if job is not None and not self._exits.take(job, [pid]):
                    log(self._folder.root, f"job {job.job_id}: its MPS daemon does not let process {pid} go")
        except OSError as error:
            log(self._folder.root, f"a process that asked to leave its MPS server: {error}")

    def job_of(self, pid: int, uid: int) -> Optional[NodeJob]:
        """Whose process it is that asks; None: of no job that shares a GPU here."""
        here = {job.job_id: job for job in jobs.all_jobs(self._folder)}
        sluids = {job.sluid: job.job_id for job in here.values() if job.sluid}
        job_id = Owners().job_of(pid, sluids, {job.job_id: job.uid for job in here.values()})
        job = here.get(job_id or 0)
        return job if job is not None and job.uses_mps and job.uid == uid else None


def _listen(path: Path) -> socket.socket:
    remove(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    # Everybody's: what it leads to is that the process that asks loses its own GPU work.
    os.chmod(path, 0o666)
    listener.listen(_MOST_WAITING)
    return listener


# Processes at an MPS server whose job is being ended, and which do not end by themselves.
#
# Slurm ends a job with SIGTERM to all of its processes and SIGKILL after KillWait, but kills what is left
# as soon as the task itself has ended, and a shell ends at once. A client that is killed takes its server's
# other clients along, so it is taken from the server before that: at once if it ignores SIGTERM, shortly
# before KillWait is over if it handles the signal itself. The task epilog (task_epilog.sh) holds up the
# SIGKILL that follows the task's end for as long as the job's file here lists live processes of that task.

_BEFORE_KILL_S = 5.0
"""How long before the end of KillWait a process that is still there is taken from its server."""
_GENERATIONS = 64
_TERM_BIT = 1 << (signal.SIGTERM - 1)


class Task(NamedTuple):
    """A process that Slurm started."""

    process: Process
    step_pid: int
    """Of the slurmstepd that did, and that runs the task epilog."""


class Leftovers:
    """Remembers which task each client belongs to, and since when that task is over."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._tasks: Dict[Process, Optional[Task]] = {}
        self._over: Dict[Process, float] = {}
        self._written: Dict[int, str] = {}
        self._overran: Set[int] = set()

    def look(
        self,
        clients: Mapping[int, Sequence[int]],
        jobs: Mapping[int, NodeJob],
        is_ending: Callable[[int], bool],
        kill_wait_s: float,
        now: float,
    ) -> Dict[int, List[int]]:
        """By job, the clients that are to be taken from their MPS server now."""
        found: Dict[Process, int] = {}
        for job_id, pids in clients.items():
            starts = ((pid, processes.start_of(pid)) for pid in pids)
            found.update({Process(pid, start): job_id for pid, start in starts if start is not None})
        self._tasks = {client: self._tasks.get(client) or _task_of(client.pid) for client in found}
        self._over = {client: self._over.get(client, now) for client in found if self._is_over(client)}
        self._list(found, jobs)
        due: Dict[int, List[int]] = {}
        for client, job_id in found.items():
            since = self._over.get(client)
            if since is None and is_ending(job_id):
                since = self._over[client] = now
            if since is not None and now - since >= _patience_s(client.pid, kill_wait_s):
                due.setdefault(job_id, []).append(client.pid)
        return due

    def unwilling(self) -> List[int]:
        """Clients that are a task themselves and would not end of SIGTERM: only Slurm knows of their end."""
        return [
            client.pid
            for client, task in self._tasks.items()
            if task is not None
            and task.process == client
            and any(_signals(client.pid, name) & _TERM_BIT for name in ("SigIgn", "SigCgt"))
        ]

    def mark_overrun(self, job_id: int) -> None:
        """Its task epilog is to judge its end, whatever its log says."""
        self._overran.add(job_id)

    def forget(self, job_id: int) -> None:
        """The job is gone."""
        self._overran.discard(job_id)
        if self._written.pop(job_id, None) is not None:
            remove(self._folder.clients_file(job_id))

    def _is_over(self, client: Process) -> bool:
        task = self._tasks[client]
        return task is not None and processes.start_of(task.process.pid) != task.process.start

    def _list(self, found: Mapping[Process, int], jobs: Mapping[int, NodeJob]) -> None:
        lines: Dict[int, str] = {
            **dict.fromkeys(self._written, ""),
            **dict.fromkeys(self._overran, "overran\n"),
        }
        for client, job_id in found.items():
            task = self._tasks[client]
            if task is not None:
                line = f"{client.pid} {task.process.pid} {task.step_pid}\n"
                lines[job_id] = lines.get(job_id, "") + line
        for job_id, text in lines.items():
            job = jobs.get(job_id)
            if job is not None and text != self._written.get(job_id):
                path, group = self._folder.clients_file(job_id), primary_group(job.uid)
                write_atomic(path, text, mode=0o640, reader_uid=job.uid, reader_gid=group)
                self._written[job_id] = text


def wake(pids: Sequence[int]) -> None:
    """A client must run to be let go; one that is suspended is about to end anyway."""
    for pid in pids:
        start = processes.start_of(pid)
        with contextlib.suppress(PermissionError):
            if start is not None:
                processes.send(Process(pid, start), signal.SIGCONT)


def _task_of(pid: int) -> Optional[Task]:
    """The task that this process descends from; None where that is not to be seen."""
    current: Optional[int] = pid
    for _ in range(_GENERATIONS):
        parent = None if current is None else processes.parent_of(current)
        if current is None or not parent or parent == 1:
            return None
        if job_of_step(parent) is not None:
            start = processes.start_of(current)
            return None if start is None else Task(Process(current, start), parent)
        current = parent
    return None


def _patience_s(pid: int, kill_wait_s: float) -> float:
    """How long a process whose job is being ended may go on: nearly KillWait if it handles SIGTERM."""
    return max(0.0, kill_wait_s - _BEFORE_KILL_S) if _signals(pid, "SigCgt") & _TERM_BIT else 0.0


def _signals(pid: int, which: str) -> int:
    """A set of signals as /proc shows it; empty when the process is gone."""
    for line in processes.status_text(pid).splitlines():
        name, _, value = line.partition(":")
        if name == which:
            with contextlib.suppress(ValueError):
                return int(value, 16)
    return 0
