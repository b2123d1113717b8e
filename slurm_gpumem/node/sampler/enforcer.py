"""What the sampler does about shared jobs: those above their shards, outside MPS, or about to be killed.

It is the one place where our code ends anything: processes of a job that takes more than Slurm gave it,
beside other jobs, whose memory that is. They are taken from their MPS server, so that nobody else ends with
them; what still holds memory a little later gets SIGKILL.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from typing import Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.errors import SlurmError
from slurm_gpumem.formats.job_record import CROWDED, OVERRUN, FaultEvent
from slurm_gpumem.node import processes
from slurm_gpumem.node.jobs import NodeJob, RunFolder
from slurm_gpumem.node.log import log
from slurm_gpumem.node.mps.client_exit import Exits, Leftovers, wake
from slurm_gpumem.node.processes import Process
from slurm_gpumem.node.sampler.tracked_jobs import Roster
from slurm_gpumem.node.sampler.usage import JobUsage
from slurm_gpumem.node.sources.base import GpuProcess
from slurm_gpumem.slurm.client import Commands
from slurm_gpumem.slurm.config_show import kill_wait_s

# The memory limit that an MPS client brings in its environment, and whether it still is one.
#
# MPS drops every limit of a client, root's default too, when its variable is invalid: not a list of GPU=SIZE,
# a size of 0, a GPU that the client does not see (docs/admin/sharing-modes.md). So only the form that the
# task prolog writes counts as a limit.


LIMIT_VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
_OURS = re.compile(r"(?:0|(?:GPU|MIG)-[0-9a-fA-F-]+)=([1-9][0-9]{0,8})M")
_SEEN = "CUDA_VISIBLE_DEVICES"


def holds_limit(environment: Mapping[str, str], most_mib: int) -> bool:
    """Whether a client with this environment is held to at most that much."""
    match = _OURS.fullmatch(environment.get(LIMIT_VARIABLE, ""))
    if match is None or int(match[1]) > most_mib:
        return False
    named = environment[LIMIT_VARIABLE].partition("=")[0]
    return named == "0" or named == environment.get(_SEEN, named)


# What is done about a job that takes more than its shards or runs outside MPS.


class Watch:
    """Remembers since when a job misbehaves; each kind of action is taken once per job."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._since: Dict[Tuple[int, str], float] = {}
        self._done: Set[Tuple[int, str]] = set()

    def check(
        self,
        job_id: int,
        now: float,
        *,
        mib: Optional[float],
        limit_mib: Optional[int],
        verified: bool,
        beside: bool,
        outside: int,
        unlimited: int,
    ) -> List[Tuple[str, str]]:
        """(action, message) that are due now.

        `beside`: whether other jobs are on its GPUs. `outside` counts GPU processes that are no MPS clients,
        `unlimited` clients without the limit that the task prolog gave them.
        """
        due = []
        over = mib is not None and limit_mib is not None and mib > limit_mib
        # Only Slurm's own count justifies ending a job, and only where others may lack the memory.
        acts = verified and beside
        text = f"job {job_id} uses {mib or 0:.0f} MiB of a shared GPU, {limit_mib} MiB are its shards"
        if self._lasts(job_id, "overrun", over and acts, now):
            due.append((self._config.on_overrun, text))
        if self._lasts(job_id, "overrun, alone", over and not acts, now):
            due.append(("log", text))
        if self._lasts(job_id, "unlimited", unlimited > 0, now):
            text = f"job {job_id} has {unlimited} MPS client(s) whose memory limit was changed or removed"
            due.append(("log", text))
        if self._lasts(job_id, "outside", outside > 0, now):
            text = f"job {job_id} has {outside} GPU process(es) outside MPS: no memory limit holds them"
            due.append(("log", text))
        return due

    def ends(self, job_id: int, now: float) -> bool:
        """Whether the job's processes are to be ended, for as long as it takes too much."""
        since = self._since.get((job_id, "overrun"), now + 1)
        return self._config.on_overrun == "end" and now - since >= self._config.grace_s

    def forget(self, job_id: int) -> None:
        """The job is gone."""
        self._since = {key: at for key, at in self._since.items() if key[0] != job_id}
        self._done = {key for key in self._done if key[0] != job_id}

    def _lasts(self, job_id: int, kind: str, wrong: bool, now: float) -> bool:
        key = (job_id, kind)
        if not wrong:
            self._since.pop(key, None)
            return False
        since = self._since.setdefault(key, now)
        if now - since < self._config.grace_s or key in self._done:
            return False
        self._done.add(key)
        return True


_OVERRUN, _ENDING = "overrun", "ending"
_KILL_AFTER_S = 3.0
"""After the order to leave. A client that computes nothing takes it and frees nothing, a stopped one does not
answer; SIGKILL to either harms no other client of its server."""

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
        self._at_work: Dict[Tuple[int, str], threading.Thread] = {}
        """By job and reason: taking processes from a server can take seconds, if a daemon does not answer."""
        self._ordered: Dict[Process, Tuple[NodeJob, float]] = {}
        """Processes that were told to leave, and when; for as long as they live, also after their job."""
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
        overran: List[Tuple[NodeJob, Dict[Process, GpuProcess]]] = []
        for job_id, usage in self._roster.usage.items():
            job = self._roster.jobs[job_id]
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
                outside=outside if job.uses_mps else 0,
                unlimited=len(unlimited.get(job_id, ())),
            ):
                log(self._folder.root, f"{message} ({action})")
                usage.notes.add(message)
                if action in ("warn", "cancel"):
                    self._roster.truth.warn(job_id, f"gpumem: {message}")
                if action == "cancel":
                    self._roster.truth.cancel(usage.name_of(job_id))
            if self._watch.ends(job_id, now) and not self._is_busy(job_id, _OVERRUN):
                told = {p: about for p, about in _own(job, seen).items() if p not in self._ordered}
                if told:
                    self._note_overrun(job, usage, beside)
                    overran.append((job, told))
        if overran:
            # The task epilogs of all jobs concerned read these: before any process fails.
            self._roster.write_records()
        for job, told in overran:
            self._order(job, told, now)
        self._kill_unwilling(seen, now)
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
        """By job with MPS, its processes at an MPS server."""
        found: Dict[int, List[int]] = {}
        for by_job in seen.values():
            for job_id, listed in by_job.items():
                job = self._roster.jobs.get(job_id or 0)
                if job is not None and job.uses_mps:
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
                if start is None or limit is None:
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

    def _order(self, job: NodeJob, told: Mapping[Process, GpuProcess], now: float) -> None:
        clients = [process.pid for process, about in told.items() if job.uses_mps and about.mps is not False]
        pids = ", ".join(str(one.pid) for one in told)
        log(self._folder.root, f"job {job.job_id}: told to leave the GPU: {pids}")
        for process in told:
            self._ordered[process] = (job, now)
            if process.pid not in clients:  # nobody else ends with it
                processes.send(process, signal.SIGTERM)
        self._take(job, clients, _OVERRUN)

    def _kill_unwilling(self, seen: Mapping[str, ByJob], now: float) -> None:
        """Those that hold memory though they were told to leave, whether or not their job is still here."""
        ordered, self._ordered = self._ordered, {}
        holding = {
            p.pid for by_job in seen.values() for listed in by_job.values() for p in listed if p.mib != 0
        }
        for process, (job, told) in ordered.items():
            if processes.start_of(process.pid) != process.start:
                continue
            self._ordered[process] = (job, told)
            # A server may need time for a client that computes, and only such a one takes others along.
            at_work = self._is_busy(job.job_id, _OVERRUN) and not processes.is_stopped(process.pid)
            due = now - told >= _KILL_AFTER_S * (2 if at_work else 1)
            if due and process.pid in holding and processes.real_uid_of(process.pid) == job.uid:
                log(self._folder.root, f"job {job.job_id}: process {process.pid} did not leave: SIGKILL")
                processes.send(process, signal.SIGKILL)

    def _end_leftovers(self, clients: Mapping[int, Sequence[int]], now: float) -> None:
        due = self._leftovers.look(clients, self._roster.jobs, self._roster.is_ending, self._kill_wait_s, now)
        unwilling = frozenset(self._leftovers.unwilling())
        self._roster.ask_often = {job_id for job_id, pids in clients.items() if unwilling.intersection(pids)}
        for job_id, pids in due.items():
            log(self._folder.root, f"job {job_id} is ending: {len(pids)} processes leave their MPS server")
            self._take(self._roster.jobs[job_id], pids, _ENDING)

    def _take(self, job: NodeJob, pids: Sequence[int], why: str) -> None:
        """In a thread of the job's own: its user's daemon may hang."""
        if not pids or self._is_busy(job.job_id, why):
            return
        thread = threading.Thread(target=self._take_now, args=(job, tuple(pids)), daemon=True)
        self._at_work = {key: one for key, one in self._at_work.items() if one.is_alive()}
        self._at_work[job.job_id, why] = thread
        thread.start()

    def _is_busy(self, job_id: int, why: str) -> bool:
        return (job_id, why) in self._at_work and self._at_work[job_id, why].is_alive()

    def _take_now(self, job: NodeJob, pids: Tuple[int, ...]) -> None:
        wake(pids)
        if not self._exits.take(job, pids):
            log(self._folder.root, f"job {job.job_id}: its MPS daemon does not let its processes go: {pids}")

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


def _own(job: NodeJob, seen: Mapping[str, ByJob]) -> Dict[Process, GpuProcess]:
    """The job's processes on all GPUs; one that runs as another user is not ours to end."""
    found: Dict[Process, GpuProcess] = {}
    for about in (process for by_job in seen.values() for process in by_job.get(job.job_id, ())):
        start = processes.start_of(about.pid)
        if start is not None and processes.real_uid_of(about.pid) == job.uid:
            found[Process(about.pid, start)] = about
    return found
