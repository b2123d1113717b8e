"""The jobs that the sampler measures, and what Slurm says about them."""

from __future__ import annotations

import os
import time
from typing import Container, Dict, List, Mapping, NamedTuple, Optional, Protocol, Set, Tuple

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.formats.comment import parse_record
from slurm_gpumem.formats.job_record import WITHOUT_MPS, JobRecord
from slurm_gpumem.node import hook, jobs, records
from slurm_gpumem.node.jobs import NodeJob, RunFolder
from slurm_gpumem.node.log import ProblemLog, log
from slurm_gpumem.node.mps.mps_limits import claimed_mib
from slurm_gpumem.node.mps.stale_daemons import Orphans
from slurm_gpumem.node.processes import real_uid_of
from slurm_gpumem.node.records import RecordStore
from slurm_gpumem.node.sampler.prometheus import Exporter
from slurm_gpumem.node.sampler.usage import JobUsage
from slurm_gpumem.slurm.client import Commands
from slurm_gpumem.slurm.state.background import Background
from slurm_gpumem.slurm.state.queue import SlurmJob, is_unknown_job, parse_slurm_job, slurm_job_command

# What Slurm itself says of the jobs on this node: asked for one job at a time, in the background.
#
# The record in a job's comment is its owner's word. Slurm's own count of shards is the truth that limits
# are checked against, and whether it still has a job says which of our jobs are over. A question for one
# job costs the controller the same however long its queue is; one for all jobs of a node makes it send the
# whole queue.

_QUICK_S = 0.5
_PART_OF_TIME = 20
"""A controller that is slow is left alone for this many times as long as it took."""
_LONGEST_PAUSE_S = 300.0


class Answer(NamedTuple):
    """What Slurm says of one job."""

    job_id: int
    job: Optional[SlurmJob]
    """None when Slurm does not have it."""
    asked_at: float
    """Unix time of the question."""


class SlurmTruth:
    """Asks now and then, never waits: `poll` gives an answer when one has come."""

    def __init__(self, config: NodeConfig) -> None:
        self._slurm = Background(Commands(config.slurm_env, config.slurm_bin))
        self._first_pause_s = min(1.0, config.slurm_every_s)
        self._pause_s = 0.0
        self._not_before = float("-inf")
        self._asked: Dict[int, float] = {}
        self._asking = 0
        self._asked_at = 0.0
        self._looks = 0
        self.answers = False
        """Whether the last question was answered."""

    def poll(self, every_s: Mapping[int, float], strangers: Container[int] = ()) -> Optional[Answer]:
        """An answer, if one has just come; then the next question, for the job that has waited longest.

        `every_s` says how often each job is to be asked about; `strangers` are asked for their comments,
        too. No answer is not "no job": nobody is swept because the controller is away.
        """
        answer = self._take_answer() if self._slurm.is_asking else None
        now = time.monotonic()
        if not self._slurm.is_asking and now >= self._not_before:
            self._asked = {job_id: at for job_id, at in self._asked.items() if job_id in every_s}
            asked = {job_id: self._asked.get(job_id, float("-inf")) for job_id in every_s}
            overdue = {job_id: now - asked[job_id] - every for job_id, every in every_s.items()}
            waiting = max(overdue, key=overdue.__getitem__, default=None)
            if waiting is not None and overdue[waiting] >= 0:
                self._asking, self._asked[waiting], self._asked_at = waiting, now, time.time()
                self._looks = 0
                self._slurm.ask(slurm_job_command(waiting, comment=waiting in strangers))
        return answer

    def warn(self, job_id: int, message: str) -> None:
        """A line on the job's stderr."""
        self._slurm.warn(job_id, message)

    def cancel(self, name: str) -> None:
        """End the job of that name."""
        self._slurm.cancel(name)

    def close(self) -> None:
        """Wait for what was started; kill what hangs."""
        self._slurm.close()

    def _take_answer(self) -> Optional[Answer]:
        reply = self._slurm.answer()
        self._looks += 1
        if self._slurm.is_asking:
            return None
        now = time.monotonic()
        # An answer that is there at the first look may have come at once: looks may be a second apart.
        took = now - self._asked.get(self._asking, now) if self._looks > 1 else 0.0
        known = reply is not None and (reply.ok or is_unknown_job(reply.error))
        self.answers = known
        if known:
            self._pause_s = _PART_OF_TIME * took if took > _QUICK_S else 0.0
        else:
            self._pause_s = max(2 * self._pause_s, self._first_pause_s, _PART_OF_TIME * took)
        self._not_before = now + min(self._pause_s, _LONGEST_PAUSE_S)
        if reply is None or not known:
            return None
        return Answer(self._asking, parse_slurm_job(reply.text, self._asking), self._asked_at)


_SWEEP_AFTER_S = 2.0
"""Slurm knows a job before its prolog runs: only a question asked this long after that counts against it."""
_ASK_OF_ENDS = 4
_URGENT_S, _ENDED_S, _STRANGER_S = 2.0, 10.0, 600.0
"""How often Slurm is asked at most about a job that is new or seems to be gone; about one that has ended; and
about one that is on our GPUs and none of ours."""
_STRANGERS_STAY_S = 60.0
_MOST_STRANGERS = 64
_SPOOL_LOCK_S = 1.0


class Listener(Protocol):
    """Who wants to know what becomes of the jobs."""

    def gone(self, job_id: int, job: Optional[NodeJob], usage: JobUsage) -> None:
        """Its epilog was here."""

    def ended(self, record: JobRecord) -> None:
        """Slurm has said how a run of it ended."""

    def finishing(self) -> None:
        """A job is about to be finished in its epilog's place, from what the live file says."""


class Roster:
    """Jobs by number, and what each has used."""

    def __init__(
        self,
        folder: RunFolder,
        config: NodeConfig,
        node: str,
        exporter: Exporter,
        problems: ProblemLog,
        listener: Listener,
    ) -> None:
        self.usage: Dict[int, JobUsage] = {}
        self.jobs: Dict[int, NodeJob] = {}
        self.truth = SlurmTruth(config)
        self.store = RecordStore(folder, config.spool, node)
        self._folder = folder
        self._config = config
        self._node = node
        self._exporter = exporter
        self._problems = problems
        self._listener = listener
        self._orphans = Orphans(folder, config, problems)
        self._slurm: Dict[int, SlurmJob] = {}
        self._absent: Dict[int, int] = {}
        self._strangers: Dict[int, float] = {}
        """Jobs on our GPUs that are none of ours → when they were last seen there."""
        self._left_open: List[Tuple[int, int]] = []
        """(job, restarts) of records that nobody closed."""
        self._tidied = float("-inf")
        self._stamp = -1
        self.ask_often: Set[int] = set()
        """Jobs whose end only Slurm can tell in time."""
        self._ended: Dict[Tuple[int, int], int] = {}
        """(job, restarts) of closed records → how often Slurm has been asked since how it ended."""

    def refresh(self) -> Mapping[int, NodeJob]:
        """Every job that is measured, after a look at what prologs and epilogs have done."""
        try:
            stamp = os.stat(self._folder.jobs).st_mtime_ns
        except OSError:
            stamp = -1
        before = self.jobs
        # A change within the clock's own grain would be missed once: look again for a while after it.
        if stamp != self._stamp or time.time_ns() - stamp < 2_000_000_000:
            self._stamp = stamp
            self.jobs = {job.job_id: job for job in jobs.all_jobs(self._folder)}
        # Every run that was closed, however short: most of a burst are over before a look at them.
        self._ended = {run: self._ended.get(run, 0) for run in self.store.unsettled()}
        # The job's next run may be here before we looked again.
        gone = [
            job_id for job_id, usage in self.usage.items() if usage.restarts != _restarts(self.jobs, job_id)
        ]
        for job_id in gone:
            self._listener.gone(job_id, before.get(job_id), self.usage.pop(job_id))
        for job in self.jobs.values():
            self.usage.setdefault(job.job_id, JobUsage(job.restarts))
            self._set_limit(job)
        return self.jobs

    def wants_slurms_word(self) -> bool:
        """Whether Slurm, which answers, is still to say how a run ended."""
        return bool(self._ended) and self.truth.answers

    def ask_slurm(self, here: Mapping[int, NodeJob]) -> bool:
        """Whether there is news; the question runs beside us."""
        now = time.monotonic()
        if now - self._tidied >= self._config.slurm_every_s:
            self._tidied = now
            self._orphans.stop(self.jobs.values())
            self._problems.attempt(lambda: self._find_left_open(here))
        answer = self.truth.poll(self._questions(here, now), self._strangers)
        if answer is None:
            return False
        self._learn(answer, here.get(answer.job_id))
        return True

    def confirm_shares(self) -> bool:
        """Ask on while a job on a GPU is there whose shards Slurm has not confirmed; False when none is.

        A look asks for one job: of several that start together the last would be held to its share too late.
        """
        if not any(map(self._is_unconfirmed, self.jobs)):
            return False
        if self.ask_slurm(self.jobs):
            self.refresh()
        return True

    def _is_unconfirmed(self, job_id: int) -> bool:
        usage = self.usage.get(job_id)
        return usage is not None and not usage.verified and usage.processes() > 0

    def is_suspended(self, job_id: int) -> bool:
        """Whether Slurm said at the last question that it is held up: then it cannot work."""
        job = self._slurm.get(job_id)
        return job is not None and job.state in ("SUSPENDED", "STOPPED")

    def is_ending(self, job_id: int) -> bool:
        """Whether Slurm said at the last question that it is being ended."""
        job = self._slurm.get(job_id)
        return job is not None and job.state == "COMPLETING"

    def _find_left_open(self, here: Mapping[int, NodeJob]) -> None:
        running = {(job.job_id, job.restarts) for job in here.values()}
        self._left_open += [run for run in self.store.left_open() if run not in running]

    def _questions(self, here: Mapping[int, NodeJob], now: float) -> Dict[int, float]:
        """How often Slurm is to be asked about which job."""
        every = self._config.slurm_every_s
        urgent, ended = min(_URGENT_S, every), min(_ENDED_S, every)
        seen = {job_id: at for job_id, at in self._strangers.items() if now - at < _STRANGERS_STAY_S}
        self._strangers = seen
        self._slurm = {job_id: job for job_id, job in self._slurm.items() if job_id in here or job_id in seen}
        self._absent = {job_id: count for job_id, count in self._absent.items() if job_id in here}
        questions = dict.fromkeys(self._strangers, _STRANGER_S)
        questions.update({job_id: ended for job_id, _ in self._left_open})
        # At first it is still being ended; others of its array may wait for the word.
        paces = (urgent, *[ended] * (_ASK_OF_ENDS - 1), every)
        questions.update({run[0]: paces[min(asked, _ASK_OF_ENDS)] for run, asked in self._ended.items()})
        for job_id in here:
            sure = self.usage[job_id].verified and not self._absent.get(job_id)
            # A job of whole GPUs is held to nothing, and its epilog says when it is over.
            pace = every if self.usage[job_id].shards or here[job_id].claim else max(every, _STRANGER_S)
            questions[job_id] = urgent if not sure else ended if job_id in self.ask_often else pace
        return questions

    def _learn(self, answer: Answer, job: Optional[NodeJob]) -> None:
        known = answer.job
        if known is not None and known.is_here:
            self._slurm[answer.job_id] = known
        else:
            self._slurm.pop(answer.job_id, None)
        self._note_end(answer)
        self._close_left_open(answer)
        if job is not None:
            here = known is not None and known.has_run(job.restarts)
            gone = not here and answer.asked_at - job.started > _SWEEP_AFTER_S
            self._absent[job.job_id] = self._absent.get(job.job_id, 0) + 1 if gone else 0
            if self._absent[job.job_id] >= 2:
                self._finish(job)

    def meet(self, job_id: int, pid: int, uuid: str) -> None:
        """A job that no prolog announced is on a GPU: with shards or our record it is ours from now on.

        Slurm 24.11 tells a Prolog no GPU until the nodes have registered with a restarted slurmctld.
        """
        if "off" in self._config.mps_anywhere():
            return  # its prolog may have left it alone as the site wants it
        known = self._slurm.get(job_id)
        if known is None and (job_id in self._strangers or len(self._strangers) < _MOST_STRANGERS):
            self._strangers[job_id] = time.monotonic()
        claim = None if known is None else parse_record(known.comment)
        ours = known is not None and (known.shards is not None or claim is not None)
        if known is not None and ours and known.uid == real_uid_of(pid):
            notes, now = ("no prolog announced it: not limited",), round(time.time(), 3)
            job = NodeJob(
                job_id, known.uid, "", (uuid,), WITHOUT_MPS, now, known.restarts, claim=claim, notes=notes
            )
            self._problems.attempt(lambda: jobs.put(self._folder, job))
            # Its comment was in that answer: Slurm is asked again for what limits it.
            del self._slurm[job_id]
            self._strangers.pop(job_id, None)

    def write_records(self) -> None:
        """Bring the records on disk up to date; one that an epilog has closed meanwhile stays as it is."""
        try:
            self.store.flush(_SPOOL_LOCK_S)
            for job in jobs.all_jobs(self._folder):
                if job.job_id in self.usage:
                    self.store.write_open(self._record(job, self.usage[job.job_id]), _SPOOL_LOCK_S)
        except OSError as error:
            self._problems.report("records", str(error))
        else:
            self._problems.resolved("records")

    def close(self) -> None:
        """Before the end: no daemon stays behind that nobody refers to; the next one asks for the ends."""
        self._orphans.stop(jobs.all_jobs(self._folder), search=True)
        self.truth.close()

    def _record(self, job: NodeJob, usage: JobUsage) -> JobRecord:
        opened = records.open_record(job, self._node)
        return records.with_measurement(opened, usage.measured(), usage.notes)

    def _set_limit(self, job: NodeJob) -> None:
        usage, known = self.usage[job.job_id], self._slurm.get(job.job_id)
        # What Slurm gave to the run before is not this one's.
        if known is not None and known.restarts >= job.restarts:
            usage.verified, usage.shards = True, known.shards
            usage.array_job, usage.array_task = known.array_job, known.array_task
            usage.cpus = known.cpus
            claimed = job.claimed.shards
            if claimed is not None and known.shards is not None and claimed != known.shards:
                usage.notes.add(f"its comment claims {claimed} shards, Slurm gave {known.shards}")
        elif not usage.verified and usage.shards is None:
            claim = claimed_mib(self._config, job)
            usage.shards = (
                None if claim is None else (claim - self._config.headroom_mib) // self._config.shard_mib
            )
        usage.limit_mib = usage.instance_mib if usage.shards is None else self._config.job_mib(usage.shards)

    def _note_end(self, answer: Answer) -> None:
        """How a job's runs ended, from Slurm: an Epilog gets "0:0" for a job that was cancelled."""
        known = answer.job
        for job_id, restarts in [run for run in self._ended if run[0] == answer.job_id]:
            state = "" if known is None else known.end_of(restarts)
            if known is not None and state:
                limit = None if known.shards is None else self._config.job_mib(known.shards)
                try:
                    record = self.store.amend_end(restarts, known, limit, _SPOOL_LOCK_S)
                except OSError as error:
                    self._problems.report("records", str(error))
                    continue  # the next answer will do
                if record is not None:
                    self._listener.ended(record)
            # Forgotten: Slurm will not say any more. While a job is being ended it will.
            if state or self._ended[job_id, restarts] >= _ASK_OF_ENDS:
                self._count(job_id, restarts)
            elif known is None or known.state != "COMPLETING":
                self._ended[job_id, restarts] += 1

    def _close_left_open(self, answer: Answer) -> None:
        """A record of a run that Slurm does not have here any more, and whose job file is gone, too."""
        known = answer.job
        for run in [run for run in self._left_open if run[0] == answer.job_id]:
            self._left_open.remove(run)
            if known is not None and known.has_run(run[1]):
                continue
            state = "" if known is None else known.end_of(run[1])
            self._problems.attempt(lambda: self.store.close_left_open(*run, state, _SPOOL_LOCK_S))  # noqa: B023

    def _count(self, job_id: int, restarts: int) -> None:
        del self._ended[job_id, restarts]
        self.store.settle(job_id, restarts)
        self._problems.attempt(lambda: self._exporter.ended(job_id, restarts))

    def _finish(self, job: NodeJob) -> None:
        """Slurm has said twice that the job is not here any more: its epilog never ran to its end."""
        log(self._folder.root, f"job {job.job_id} is gone but was not finished: done now")
        self._listener.finishing()
        self._problems.attempt(lambda: hook.finish(self._folder, self._config, job, self._node))
        self._problems.attempt(lambda: self.store.flush(_SPOOL_LOCK_S))


def _restarts(here: Mapping[int, NodeJob], job_id: int) -> Optional[int]:
    return here[job_id].restarts if job_id in here else None
