"""Processes that leave their MPS server before they end, so that the server's other clients go on.

A client that ends with work on the GPU takes all clients of its server along. `terminate_client` takes a
client from its server in a few milliseconds and harms nobody else; it is the server's owner's to say, so root
says it. A process that is about to end asks over a socket (prolog/gpumem_end.c); the kernel says who it is.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections import defaultdict
from pathlib import Path
from typing import Dict, Iterable, Optional, Set, Tuple

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.files import remove
from slurm_gpumem.node import jobs, processes
from slurm_gpumem.node.jobs import NodeJob, RunFolder
from slurm_gpumem.node.log import log
from slurm_gpumem.node.mps.daemons import MpsService
from slurm_gpumem.node.sampler.pid_to_job import Owners

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
                job = self._job_of(pid, uid)
                if job is not None and not self._exits.take(job, [pid]):
                    log(self._folder.root, f"job {job.job_id}: its MPS daemon does not let process {pid} go")
        except OSError as error:
            log(self._folder.root, f"a process that asked to leave its MPS server: {error}")

    def _job_of(self, pid: int, uid: int) -> Optional[NodeJob]:
        here = {job.job_id: job for job in jobs.all_jobs(self._folder)}
        sluids = {job.sluid: job.job_id for job in here.values() if job.sluid}
        job_id = Owners().job_of(pid, sluids, {job.job_id: job.uid for job in here.values()})
        job = here.get(job_id or 0)
        return job if job is not None and job.fenced and job.uid == uid else None


def _listen(path: Path) -> socket.socket:
    remove(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    # Everybody's: what it leads to is that the process that asks loses its own GPU work.
    os.chmod(path, 0o666)
    listener.listen(_MOST_WAITING)
    return listener
