"""What the sampler does about jobs on shared GPUs: those above their shards, unfenced, or about to be killed.

It is the one place where our code ends anything: processes of a job that takes more than Slurm gave it,
beside other jobs, whose memory that is. They are taken from their MPS server, so that nobody else ends with
them.
"""

from __future__ import annotations

import threading
import time
from typing import Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.errors import SlurmError
from slurm_gpumem.formats.job_record import CROWDED, OVERRUN, FaultEvent
from slurm_gpumem.node import processes
from slurm_gpumem.node.ends import Exits
from slurm_gpumem.node.jobs import NodeJob, RunFolder
from slurm_gpumem.node.leftovers import Leftovers, wake
from slurm_gpumem.node.limit_variable import holds_limit
from slurm_gpumem.node.log import log
from slurm_gpumem.node.policy import Watch
from slurm_gpumem.node.processes import Process
from slurm_gpumem.node.roster import Roster
from slurm_gpumem.node.sources.base import GpuProcess
from slurm_gpumem.node.usage import JobUsage
from slurm_gpumem.slurm.client import Commands
from slurm_gpumem.slurm.config_show import kill_wait_s

_KILL_GRACE_S = 0.5

ByJob = Mapping[Optional[int], Sequence[GpuProcess]]


class Enforcer:
    """Looks at each GPU's processes, and acts once per round."""

    def __init__(self, folder: RunFolder, config: NodeConfig, roster: Roster, exits: Exits) -> None:
        self._folder = folder
        self._config = config
        self._roster = roster
        self._exits = exits
        self._watch = Watch(config)
        self._leftovers = Leftovers(folder)
        self._seen: Dict[str, ByJob] = {}
        self._at_work: Dict[int, threading.Thread] = {}
        """By job: taking processes from a server can take seconds, if a user's daemon does not answer."""
        self._unlimited: Dict[Process, bool] = {}
        self._kill_wait_s = 30.0
        threading.Thread(target=self._ask_kill_wait, daemon=True).start()

    def see(self, uuid: str, by_job: ByJob) -> None:
        """Who is on a GPU in this round."""
        self._seen[uuid] = by_job

    def act(self, now: float) -> None:
        """What is due, after all GPUs have been looked at."""
        seen, self._seen = self._seen, {}
        clients = self._clients(seen)
        unlimited = self._without_limit(clients)
        overran: List[NodeJob] = []
        for job_id, usage in self._roster.usage.items():
            job = self._roster.announced.get(job_id)
            if job is not None and self._watch.requeues(job):
                log(self._folder.root, f"job {job_id} could not be fenced: requeued")
                usage.notes.add("requeued, since it was not fenced")
                self._roster.truth.requeue(job_id)
            beside = {uuid: _others(by_job, job_id) for uuid, by_job in seen.items() if by_job.get(job_id)}
            sizes = [gpu.now_mib for gpu in usage.gpus.values() if gpu.now_mib is not None]
            outside = sum(p.mps is False for by_job in seen.values() for p in by_job.get(job_id, ()))
            for action, message in self._watch.check(
                job_id,
                now,
                mib=max(sizes, default=None),
                limit_mib=usage.limit_mib,
                verified=usage.verified and usage.shards is not None,
                beside=any(beside.values()),
                unfenced=outside if job is not None and job.fenced else 0,
                unlimited=len(unlimited.get(job_id, ())),
            ):
                log(self._folder.root, f"{message} ({action})")
                usage.notes.add(message)
                if action in ("warn", "cancel"):
                    self._roster.truth.warn(job_id, f"gpumem: {message}")
                if action == "cancel":
                    self._roster.truth.cancel(job_id)
                if action == "end" and job is not None:
                    self._note_overrun(job, usage, beside)
                    overran.append(job)
        if overran:
            # The task epilogs of all jobs concerned read these: before any process fails.
            self._roster.write_records()
        for job in overran:
            self._end_processes(job, seen)
        self._end_leftovers(clients, now)

    def forget(self, job_id: int) -> None:
        """The job is gone."""
        self._watch.forget(job_id)
        self._leftovers.forget(job_id)

    def close(self) -> None:
        """Wait for what is under way."""
        for thread in self._at_work.values():
            thread.join(timeout=5.0)

    def _clients(self, seen: Mapping[str, ByJob]) -> Dict[int, List[int]]:
        """By fenced job, its processes at an MPS server."""
        found: Dict[int, List[int]] = {}
        for by_job in seen.values():
            for job_id, listed in by_job.items():
                job = self._roster.announced.get(job_id or 0)
                if job is not None and job.fenced:
                    pids = found.setdefault(job.job_id, [])
                    pids.extend(p.pid for p in listed if p.mps is not False and p.pid not in pids)
        return found

    def _without_limit(self, clients: Mapping[int, Sequence[int]]) -> Dict[int, List[int]]:
        """By job, the clients that were started without the limit variable that the task prolog sets."""
        known, self._unlimited = self._unlimited, {}
        found: Dict[int, List[int]] = {}
        for job_id, pids in clients.items():
            limit = self._roster.usage[job_id].limit_mib
            for pid in pids:
                start = processes.start_of(pid)
                if start is None or limit is None or not self._config.limits:
                    continue
                client = Process(pid, start)
                if client not in known:
                    known[client] = not holds_limit(processes.environment(pid), limit)
                self._unlimited[client] = known[client]
                if known[client]:
                    found.setdefault(job_id, []).append(pid)
        return found

    def _note_overrun(self, job: NodeJob, usage: JobUsage, beside: Mapping[str, FrozenSet[int]]) -> None:
        at = round(time.time(), 1)
        self._leftovers.mark_overrun(job.job_id)
        for uuid, others in beside.items():
            _note(usage, FaultEvent(OVERRUN, uuid, at, tuple(sorted(others))))
            for other in others:
                _note(self._roster.usage[other], FaultEvent(CROWDED, uuid, at, (job.job_id,)))

    def _end_processes(self, job: NodeJob, seen: Mapping[str, ByJob]) -> None:
        mine = [process for by_job in seen.values() for process in by_job.get(job.job_id, ())]
        outside = {process.pid for process in mine if not job.fenced or process.mps is False}
        self._take(job, [process.pid for process in mine if process.pid not in outside])
        own = ((pid, processes.start_of(pid)) for pid in outside if processes.uid_of(pid) == job.uid)
        # No MPS client: nobody else ends with it.
        processes.end((Process(pid, start) for pid, start in own if start is not None), _KILL_GRACE_S)

    def _end_leftovers(self, clients: Mapping[int, Sequence[int]], now: float) -> None:
        due = self._leftovers.look(
            clients, self._roster.announced, self._roster.is_ending, self._kill_wait_s, now
        )
        unwilling = frozenset(self._leftovers.unwilling())
        self._roster.ask_often = {job_id for job_id, pids in clients.items() if unwilling.intersection(pids)}
        for job_id, pids in due.items():
            log(self._folder.root, f"job {job_id} is ending: {len(pids)} processes leave their MPS server")
            self._take(self._roster.announced[job_id], pids)

    def _take(self, job: NodeJob, pids: Sequence[int]) -> None:
        """In a thread of the job's own: its user's daemon may hang."""
        running = self._at_work.get(job.job_id)
        if not pids or (running is not None and running.is_alive()):
            return
        thread = threading.Thread(target=self._take_now, args=(job, tuple(pids)), daemon=True)
        self._at_work = {number: one for number, one in self._at_work.items() if one.is_alive()}
        self._at_work[job.job_id] = thread
        thread.start()

    def _take_now(self, job: NodeJob, pids: Tuple[int, ...]) -> None:
        wake(pids)
        self._exits.take(job, pids)

    def _ask_kill_wait(self) -> None:
        try:
            self._kill_wait_s = kill_wait_s(Commands(self._config.slurm_env, self._config.slurm_bin))
        except SlurmError as error:
            log(self._folder.root, f"KillWait is not known, {self._kill_wait_s:g} s taken: {error}")


def _note(usage: JobUsage, event: FaultEvent) -> None:
    """Once: processes that are being ended are seen a few times more."""
    if all(noted._replace(at=event.at) != event for noted in usage.events):
        usage.events.append(event)


def _others(by_job: ByJob, job_id: int) -> FrozenSet[int]:
    return frozenset(other for other in by_job if other is not None and other != job_id)
