"""The jobs that the sampler measures, announced by a prolog or found, and what Slurm says about them."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Dict, Mapping, Optional, Protocol, Tuple

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.files import locked
from slurm_gpumem.formats.job_record import JobRecord, write_job_record
from slurm_gpumem.node import hook, jobs, records
from slurm_gpumem.node.exporter import Exporter
from slurm_gpumem.node.jobs import NodeJob, RunFolder
from slurm_gpumem.node.log import log
from slurm_gpumem.node.orphans import Orphans
from slurm_gpumem.node.problem_log import ProblemLog
from slurm_gpumem.node.processes import uid_of
from slurm_gpumem.node.slurm_truth import SlurmTruth
from slurm_gpumem.node.usage import JobUsage
from slurm_gpumem.slurm.queue import SlurmJob

_SWEEP_AFTER_S = 2.0
"""Slurm knows a job before its prolog runs: only a question asked this long after that counts against it."""
_ASK_OF_ENDS = 4


class Listener(Protocol):
    """Who wants to know what becomes of the jobs."""

    def gone(self, job_id: int, job: Optional[NodeJob]) -> None:
        """Its epilog was here."""

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
        self.announced: Dict[int, NodeJob] = {}
        self.adopted: Dict[int, NodeJob] = {}
        self.truth = SlurmTruth(config, node)
        self._folder = folder
        self._config = config
        self._node = node
        self._exporter = exporter
        self._problems = problems
        self._listener = listener
        self._orphans = Orphans(folder, config, problems)
        self._slurm: Dict[int, SlurmJob] = {}
        self._absent: Dict[int, int] = {}
        self._stamp = -1
        self._ended: Dict[Tuple[int, int], int] = {}
        """(job, restarts) whose epilog was here → how often Slurm has been asked since how it ended."""

    @property
    def slurm_has_jobs(self) -> bool:
        """Whether Slurm says that any job is here, announced or not."""
        return bool(self._slurm)

    def all_here(self) -> Dict[int, NodeJob]:
        """Every job that is measured."""
        return {**self.adopted, **self.announced}

    def refresh(self) -> Mapping[int, NodeJob]:
        """Every job that is measured, after a look at what prologs and epilogs have done."""
        try:
            stamp = os.stat(self._folder.jobs).st_mtime_ns
        except OSError:
            stamp = -1
        # A change within the clock's own grain would be missed once: look again for a while after it.
        if stamp != self._stamp or time.time_ns() - stamp < 2_000_000_000:
            self._stamp = stamp
            before = self.announced
            self.announced = {job.job_id: job for job in jobs.all_jobs(self._folder)}
            for job_id in [job_id for job_id in self.usage if job_id not in self.announced | self.adopted]:
                self._ended[job_id, self.usage.pop(job_id).restarts] = 0
                self._listener.gone(job_id, before.get(job_id))
        for job in self.announced.values():
            if self.usage.setdefault(job.job_id, JobUsage(job.restarts)).restarts != job.restarts:
                self.usage[job.job_id] = JobUsage(job.restarts)
            self._set_limit(job)
        return self.all_here()

    def ask_slurm(self, here: Mapping[int, NodeJob]) -> bool:
        """Whether there is news; the question runs beside us."""
        unverified = any(not self.usage[job_id].verified for job_id in self.announced)
        answer = self.truth.poll(urgent=unverified)
        if answer is None:
            return False
        self._slurm = {job_id: job for job_id, job in answer.items() if job.is_here}
        self._note_ends(answer)
        for job in here.values():
            asked_late_enough = self.truth.asked_at - job.started > _SWEEP_AFTER_S
            gone = job.job_id not in self._slurm and asked_late_enough
            self._absent[job.job_id] = self._absent.get(job.job_id, 0) + 1 if gone else 0
            if self._absent[job.job_id] >= 2:
                self._finish(job)
        self._absent = {job_id: count for job_id, count in self._absent.items() if job_id in here}
        self._orphans.stop(self.announced.values())
        return True

    def adopt(self, job_id: int, pid: int, uuid: str) -> bool:
        """A job with shards that no prolog announced: measured like the others, but not fenced."""
        known = self._slurm.get(job_id)
        if known is None or known.shards is None or known.uid != uid_of(pid):
            return False
        note = ("no prolog announced it: measured, not fenced",)
        job = NodeJob(job_id, known.uid, "", (uuid,), "timeslice", round(time.time(), 3), notes=note)
        self.adopted[job_id] = job
        self.usage[job_id] = JobUsage(0, notes=set(note))
        self._set_limit(job)
        return True

    def seen_on(self, job_id: int, uuid: str) -> None:
        """An adopted job is on every GPU where it is met."""
        adopted = self.adopted.get(job_id)
        if adopted is not None and uuid not in adopted.gpus:
            self.adopted[job_id] = replace(adopted, gpus=(*adopted.gpus, uuid))

    def write_records(self) -> None:
        """Bring the records on disk up to date; an epilog that has closed one in the meantime wins."""
        try:
            with locked(self._folder.records_lock, 1.0):
                for job in jobs.all_jobs(self._folder):
                    if job.job_id in self.usage:
                        write_job_record(self._config.spool, self._record(job, self.usage[job.job_id]))
        except OSError as error:
            self._problems.report("records", str(error))
        else:
            self._problems.resolved("records")

    def close(self) -> None:
        """Before the end: no daemon stays behind that nobody refers to, no run uncounted."""
        self._orphans.stop(jobs.all_jobs(self._folder), search=True)
        for job_id, restarts in list(self._ended):
            self._count(job_id, restarts)
        self.truth.close()

    def _record(self, job: NodeJob, usage: JobUsage) -> JobRecord:
        opened = records.open_record(job, self._node)
        return records.with_measurement(opened, usage.measured(), usage.notes)

    def _set_limit(self, job: NodeJob) -> None:
        usage, known = self.usage[job.job_id], self._slurm.get(job.job_id)
        if known is not None:
            usage.verified, usage.shards = True, known.shards
            claimed = job.claimed.shards
            if claimed is not None and known.shards is not None and claimed != known.shards:
                usage.notes.add(f"its comment claims {claimed} shards, Slurm gave {known.shards}")
        elif not usage.verified and usage.shards is None:
            claim = hook.claimed_mib(self._config, job)
            usage.shards = (
                None if claim is None else (claim - self._config.headroom_mib) // self._config.shard_mib
            )
        usage.limit_mib = None if usage.shards is None else self._config.job_mib(usage.shards)

    def _note_ends(self, answer: Mapping[int, SlurmJob]) -> None:
        """How a job ended, from Slurm: an Epilog gets "0:0" for a job that was cancelled."""
        for (job_id, restarts), asked in list(self._ended.items()):
            known = answer.get(job_id)
            if known is not None and known.is_over:

                def amend(job_id: int = job_id, restarts: int = restarts, state: str = known.state) -> None:
                    with locked(self._folder.records_lock, 1.0):
                        records.amend_state(self._config.spool, job_id, restarts, self._node, state)

                self._problems.attempt(amend)
            # Requeued, or forgotten: Slurm will not say any more.
            if (known is not None and known.is_over) or asked >= _ASK_OF_ENDS:
                self._count(job_id, restarts)
            else:
                self._ended[job_id, restarts] = asked + 1

    def _count(self, job_id: int, restarts: int) -> None:
        del self._ended[job_id, restarts]
        self._problems.attempt(lambda: self._exporter.ended(job_id, restarts))

    def _finish(self, job: NodeJob) -> None:
        """Slurm has said twice that the job is not here any more: its epilog never ran to its end."""
        log(self._folder.root, f"job {job.job_id} is gone but was not finished: done now")
        if self.adopted.pop(job.job_id, None) is not None:
            still_open = self._record(job, self.usage.pop(job.job_id))
            record = records.closed_record(still_open, end=round(time.time(), 3), status="")
            self._problems.attempt(lambda: write_job_record(self._config.spool, record, durable=True))
            self._problems.attempt(lambda: self._exporter.count(record))
            return
        self._listener.finishing()
        self._problems.attempt(lambda: hook.finish(self._folder, self._config, job, self._node, ""))
