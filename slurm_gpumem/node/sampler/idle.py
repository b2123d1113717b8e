"""Jobs that do nothing on their GPUs: found, warned and, where the site wants that, cancelled.

A job rests while it is certain that none of its GPUs computes anything for it (JobUsage.rest_s). What
becomes of a resting job depends on things that Slurm knows, so Slurm is asked when its time comes, again
before a cancel, and in a thread: the sampler has a node to look at in the meantime.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, NamedTuple, Optional

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.errors import SlurmError
from slurm_gpumem.formats.job_record import FaultEvent
from slurm_gpumem.formats.verdicts import IDLE, IDLE_ENDED
from slurm_gpumem.node.jobs import NodeJob, RunFolder
from slurm_gpumem.node.log import log
from slurm_gpumem.node.sampler.tracked_jobs import Roster
from slurm_gpumem.node.sampler.usage import JobUsage
from slurm_gpumem.slurm.client import Commands
from slurm_gpumem.slurm.mail import JobWords, send, words_of
from slurm_gpumem.slurm.state.queue import Job, cancel_command, find_job, line_command
from slurm_gpumem.units import about_time

_STARTS_S = 60.0
"""A job has rested since its start if its measurement lacks no more than this of its time."""
_ASK_AGAIN_S = 60.0
_MAIL_EVERY_S = 3600.0
"""A user's array of idle tasks is one mail, not a thousand."""
_MOST_THREADS = 4
_SESSIONS = ("interactive", "sys/dashboard")
"""What sites call jobs in which somebody works; the second is Open OnDemand's."""
_NEVER = float("inf")


def time_allowed_s(
    config: NodeConfig, job: Job, words: JobWords, rest_s: float, age_s: float
) -> Optional[float]:
    """How long this job may rest; None for one that is left alone.

    A node sees its own part of a job only, so jobs on several nodes are.
    """
    left_alone = config.idle_except
    excepted = (
        job.user in left_alone["user"]
        or job.qos in left_alone["qos"]
        or any(name in left_alone["partition"] for name in job.partitions)
    )
    if excepted or job.het or job.nodes > 1:
        return None
    if not job.batch or words.name.startswith(_SESSIONS):
        return config.idle_after["interactive"]
    return config.idle_after["start" if rest_s >= age_s - _STARTS_S else "later"]


@dataclass
class _Case:
    """A job that rests."""

    rest_s: float
    """As last seen: less means that it works again."""
    due_s: float
    """The rest at which Slurm is asked about it."""
    told: bool = False
    cancel_s: float = _NEVER
    """The rest at which it is cancelled; no job is that was not warned a while before."""
    asking: bool = False


class _Answer(NamedTuple):
    job: NodeJob
    known: Optional[Job]
    words: JobWords


class IdleWatch:
    """Looks at all jobs once a round."""

    def __init__(self, folder: RunFolder, config: NodeConfig, roster: Roster) -> None:
        self._folder = folder
        self._config = config
        self._roster = roster
        self._commands = Commands(config.slurm_env, config.slurm_bin)
        self._cases: Dict[int, _Case] = {}
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._asking = 0
        self._mailed: Dict[int, float] = {}
        """By user, when."""
        self._first_s = min(config.idle_after.values()) * (0.5 if config.on_idle == "cancel" else 1.0)

    def look(self) -> None:
        """What is due."""
        for job_id, usage in self._roster.usage.items():
            if self._roster.is_suspended(job_id):
                usage.begin_rest()
            job, rest_s = self._roster.jobs[job_id], usage.rest_s(self._roster.jobs[job_id].gpus)
            case = self._cases.get(job_id)
            if case is not None and rest_s < case.rest_s:
                if case.told:
                    log(self._folder.root, f"job {job_id} uses its GPU again")
                del self._cases[job_id]
                case = None
            if case is None:
                if rest_s < self._first_s:
                    continue
                case = self._cases[job_id] = _Case(rest_s, self._first_s)
            case.rest_s = rest_s
            if rest_s >= case.due_s and not case.asking and self._asking < _MOST_THREADS:
                case.asking = True
                self._asking += 1
                name = usage.name_of(job_id)
                threading.Thread(target=self._ask, args=(job, name), daemon=True).start()
        while not self._answers.empty():
            self._asking -= 1
            self._decide(self._answers.get())

    def forget(self, job_id: int) -> None:
        """The job is gone."""
        self._cases.pop(job_id, None)

    def _ask(self, job: NodeJob, name: str) -> None:
        known, words = None, JobWords()
        try:
            known = find_job(self._commands, name)
            words = words_of(self._commands, name)
        except SlurmError as error:
            log(self._folder.root, f"job {job.job_id} is idle, and Slurm does not say what it is: {error}")
            known = None
        self._answers.put(_Answer(job, known, words))

    def _decide(self, answer: _Answer) -> None:
        job, known = answer.job, answer.known
        case, usage = self._cases.get(job.job_id), self._roster.usage.get(job.job_id)
        if case is None or usage is None or usage.restarts != job.restarts:
            return
        case.asking, case.due_s = False, case.rest_s + _ASK_AGAIN_S
        if known is None or known.state != "RUNNING" or known.restarts != job.restarts:
            return
        age_s = job.now() - job.started
        allowed_s = time_allowed_s(self._config, known, answer.words, case.rest_s, age_s)
        if allowed_s is None:
            case.due_s = _NEVER
        elif self._config.on_idle == "cancel":
            self._warn_or_cancel(answer, case, usage, allowed_s)
        elif case.rest_s >= allowed_s:
            case.due_s = _NEVER
            self._tell(answer, case, usage, "")
        else:
            case.due_s = allowed_s

    def _warn_or_cancel(self, answer: _Answer, case: _Case, usage: JobUsage, allowed_s: float) -> None:
        if case.rest_s < allowed_s / 2:
            case.due_s = allowed_s / 2
        elif not case.told:
            case.due_s = case.cancel_s = max(allowed_s, case.rest_s + allowed_s / 4)
            left = about_time(case.cancel_s - case.rest_s)
            if self._is_first(answer.job):
                case.due_s = case.cancel_s = _NEVER
                self._tell(answer, case, usage, "; jobs of yours that do so again will be cancelled")
            else:
                self._tell(answer, case, usage, f" and is cancelled in {left} unless it does")
        elif case.rest_s >= case.cancel_s:
            name = usage.name_of(answer.job.job_id)
            text = f"cancelled: its GPU was idle for {about_time(case.rest_s)}"
            self._note(answer.job, usage, IDLE_ENDED, case.rest_s, text)
            threading.Thread(target=self._cancel, args=(answer.job, name, text), daemon=True).start()

    def _tell(self, answer: _Answer, case: _Case, usage: JobUsage, then: str) -> None:
        """Note it, and warn the user unless the site only wants a log."""
        job, case.told = answer.job, True
        name, lasts = usage.name_of(job.job_id), about_time(case.rest_s)
        self._note(job, usage, IDLE, case.rest_s, f"its GPU was idle for {lasts}")
        if self._config.on_idle == "log":
            return
        text = f"job {name} has not used its GPU for {lasts}{then}"
        self._roster.truth.warn(job.job_id, f"gpumem: {text}")
        now = time.monotonic()
        if now - self._mailed.get(job.uid, -_NEVER) >= _MAIL_EVERY_S:
            self._mailed[job.uid] = now
            threading.Thread(target=self._mail, args=(answer, name, text), daemon=True).start()

    def _note(self, job: NodeJob, usage: JobUsage, kind: str, rest_s: float, text: str) -> None:
        usage.events = [event for event in usage.events if event.kind != kind]
        uuid = job.gpus[0] if job.gpus else ""
        usage.events.append(FaultEvent(kind, uuid, round(time.time(), 1), (), seconds=round(rest_s)))
        log(self._folder.root, f"job {job.job_id}: {text} ({self._config.on_idle})")

    def _mail(self, answer: _Answer, name: str, text: str) -> None:
        body = f"{text}.\n\ngpumem report {name}    shows what it did\nscancel {name}          ends it\n"
        try:
            send(self._commands, answer.job.uid, answer.words, f"Slurm {text}", body)
        except SlurmError as error:
            log(self._folder.root, f"job {answer.job.job_id}: its user was not mailed: {error}")

    def _cancel(self, job: NodeJob, name: str, text: str) -> None:
        line = line_command(job.job_id, f"gpumem: job {name} is {text}")
        for argv in (line, cancel_command(name)):
            try:
                self._commands.run(argv, timeout_s=10.0)
            except SlurmError as error:
                log(self._folder.root, f"job {job.job_id}: {error}")

    def _is_first(self, job: NodeJob) -> bool:
        """Whether no earlier job of this user was found idle; notes this one.

        The first one teaches; where that cannot be noted, nobody is cancelled.
        """
        path, run = self._config.spool / ".idle" / str(job.uid), f"{job.job_id}.{job.restarts}.{job.started}"
        try:
            return not _noted_before(path, run)
        except OSError as error:
            log(self._folder.root, f"job {job.job_id} is idle and not cancelled: {error}")
            return True


def _noted_before(path: Path, run: str) -> bool:
    """Whether the file names another run; this one is in it from now on."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "r+") as file:
        found = file.read(1 << 16).split()
        if run not in found and len(found) < 2:  # two say that there was another
            file.write(f"{run}\n")
        return any(other != run for other in found)
