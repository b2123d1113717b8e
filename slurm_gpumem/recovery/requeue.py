"""Requeue a job with another request: hold, change, read back, release; each step by the job's own state.

What is to be done is decided once and written down; where a job stands is read from Slurm
before each step: ended, held with the old request, held with the new one, released. So whoever is killed
between two steps is continued by the next run, two runs at once do nothing twice, a job is never let go with
its old request, and a controller that has lost a step in a crash is given it again.

Slurm forgets a cancel of a job that has ended and is still completing. So a job at its slot's end is put back
before it ends, by its own task epilog: from then on a cancel ends it as any job that waits. What is put back
and must not run again is cancelled; no other job ever is.
"""

from __future__ import annotations

import os
import re
import stat
import time
from pathlib import Path
from typing import Callable, Dict, Iterator, NamedTuple, Optional, Tuple, TypeVar, Union

from slurm_gpumem.config.recovery import RecoveryConfig
from slurm_gpumem.errors import SlurmError
from slurm_gpumem.files import read_plain, remove
from slurm_gpumem.formats.comment import CommentRecord
from slurm_gpumem.formats.decisions import BadDecisionsError, Decision, read_decisions, write_decisions
from slurm_gpumem.formats.job_record import MAX_BYTES, OVERRUN, BadRecordError, JobRecord, parse_job_record
from slurm_gpumem.formats.verdicts import SAME_REQUEST, SLOT, VERDICTS
from slurm_gpumem.recovery.job_comment import JobComment, Refusal, parse_comment, with_record
from slurm_gpumem.recovery.ladder import decide, record_of_next, why_not
from slurm_gpumem.recovery.slots import BEHIND_OTHERS, next_slot
from slurm_gpumem.slurm.client import SlurmUnreachableError
from slurm_gpumem.slurm.config_show import Site
from slurm_gpumem.slurm.gres import held_by
from slurm_gpumem.slurm.state.controller import Controller, exceeded
from slurm_gpumem.slurm.state.queue import Job
from slurm_gpumem.submission.share.instances import sizes_beside_instances

# What was decided about which job: small files of SlurmUser's below StateSaveLocation.
#
# A decision is written before it is carried out. Whoever comes later (after a kill, a crash, a change of
# the configuration) carries out the same one, and a refusal stays a refusal.

FOLDER_NAME = "gpumem-recovery"
_KEPT_S = 90 * 86_400
"""Longer than jobs run; job numbers are not given twice within it."""


def become_owner(state: Optional[Path]) -> None:
    """Root becomes SlurmUser, whose folder this is: files of root's there would stop SlurmUser's own hook."""
    if state is None or os.geteuid() != 0:
        return
    try:
        about = os.stat(state)
    except OSError as error:
        raise SlurmError(f"{state}: {error.strerror}; run this on the controller's host") from None
    if about.st_uid:
        os.setgroups([])
        os.setgid(about.st_gid)
        os.setuid(about.st_uid)


class Book:
    """The decisions about all jobs; SlurmError where none can be kept, because then none may be made."""

    def __init__(self, state: Optional[Path]) -> None:
        if state is None:
            raise SlurmError("scontrol show config names no StateSaveLocation to write decisions to")
        self._folder = state / FOLDER_NAME
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            about = os.stat(self._folder, follow_symlinks=False)
        except OSError as error:
            raise SlurmError(f"{self._folder}: decisions cannot be written: {error.strerror}") from None
        safe = stat.S_ISDIR(about.st_mode) and about.st_uid in (0, os.geteuid()) and not about.st_mode & 0o022
        if not safe:
            raise SlurmError(f"{self._folder}: is not a folder that only SlurmUser can write")

    def read(self, name: str) -> Dict[int, Decision]:
        """What was decided about a job, by the run that had failed."""
        try:
            return {one.run: one for one in read_decisions(self._path(name))}
        except (OSError, BadDecisionsError) as error:
            raise SlurmError(f"what was decided about job {name} is not known: {error}") from None

    def write(self, name: str, decision: Decision) -> None:
        """Add one; the caller holds the job's lock."""
        known = {**self.read(name), decision.run: decision}
        try:
            write_decisions(self._path(name), tuple(known[run] for run in sorted(known)))
        except OSError as error:
            raise SlurmError(f"{self._folder}: decisions cannot be written: {error.strerror}") from None

    def tidy(self) -> None:
        """Remove what is about jobs of long ago."""
        with os.scandir(self._folder) as entries:
            old = time.time() - _KEPT_S
            for path in [entry.path for entry in entries if entry.stat(follow_symlinks=False).st_mtime < old]:
                remove(Path(path))

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


# What root measured of a run: a fault that hit it together with other jobs.
#
# Everything else that EpilogSlurmctld knows of a job's end is its owner's word: the log, the verdict in the
# comment, the exit code. The node's job record is root's. The sampler writes it while the job runs, so it
# is there where `node.spool` is a file system that the controller's host shares and SlurmUser may read.


_ROOT = 0
_CLOSING_S, _PROOF_PAUSE_S = 3.0, 0.1


def was_hit_with_others(spool: Path, job: Job, run: int) -> bool:
    """Whether a record of root's shows a fault of this run and others, or that another took its memory."""
    deadline = time.monotonic() + _CLOSING_S
    while True:
        records = list(records_of_root(spool, job, f"{run}."))
        events = [event for record in records for event in record.measured.events]
        if any(event.others for event in events if event.kind != OVERRUN):
            return True
        # The Epilog closes the record; what the sampler saw is in it by then.
        if time.monotonic() > deadline:
            return False
        time.sleep(_PROOF_PAUSE_S)


def records_of_root(spool: Path, job: Job, runs: str = "") -> Iterator[JobRecord]:
    """Root's records of a job, or of those of its runs whose names go on like this: "0."."""
    try:
        names = [name for name in os.listdir(spool) if name.startswith(f"{job.number}.{runs}")]
    except OSError:
        return
    for name in names:
        try:
            data = read_plain(spool / name, most_bytes=MAX_BYTES, owners=(_ROOT,))
            record = parse_job_record(data)
        except (OSError, BadRecordError):
            continue
        # A folder that others may write can hold a record of root's under another name than its own.
        if (record.job_id, record.uid) == (job.number, job.uid) and f".{record.restarts}." in name:
            yield record


_T = TypeVar("_T")
_ROUNDS = 12
_PAUSE_S = 0.05
_HELD = "gpumem: held;"
_MOST_SAID = 500
_AWAY = re.compile(r"(?i)unable to contact|connection refused|timed out|zero bytes|connection failure")


class Outcome(NamedTuple):
    """What came of it."""

    requeued: bool
    reason: str
    job: Optional[Job] = None
    decision: Optional[Decision] = None
    """Of a job that was changed and let go: what was decided about it."""


class Requeue:
    """Brings one job after the other back."""

    def __init__(self, slurm: Controller, config: RecoveryConfig, site: Site, deadline: float) -> None:
        self._slurm, self._config, self._site = slurm, config, site
        self._deadline = deadline
        self._book = Book(site.state)
        self._sizes: Dict[Tuple[str, ...], Dict[str, int]] = {}
        self._units: Dict[Tuple[Tuple[str, ...], str], Dict[Optional[str], int]] = {}

    def recover(self, name: str, ended_run: Optional[int] = None) -> Outcome:
        """Take the job from wherever it stands to the queue, if it belongs there.

        `ended_run`: which run it was when it ended, as its hook was told.
        """
        reason, refused = "", None
        for _ in range(_ROUNDS):
            job = self._patiently(lambda: self._slurm.job(name))
            if job is None:
                return Outcome(False, "Slurm does not know it any more")
            comment = parse_comment(job.comment)
            ended, end = job.ended, comment.end
            at_slot = end is not None and end.saw == SLOT
            run = job.restarts - (0 if ended else 1)
            decided = self._book.read(name)
            if end and at_slot and end.run in (ended_run, job.restarts) and end.run not in decided:
                # Its task epilog did not put it back, or only after a cancel.
                self._book.write(name, _refused(end.run, "it was over before it was put back"))
                continue
            decision = decided.get(run)
            if decision is not None and self._changed(job, comment, decision):
                if job.held:
                    self._try(lambda: self._slurm.release(name))
                    continue
                return Outcome(True, decision.reason, job, decision)
            if not (job.held or ended):
                return Outcome(False, f"it is {job.state} ({job.reason})")
            if decision is None:
                if job.held and not at_slot:
                    return Outcome(False, "it is held, and not by recovery")
                if end is None or end.run != run:
                    return Outcome(False, "what its comment says is of another run")
                decision = self._decide(job, comment)
            reason = decision.reason
            if not decision.requeued:
                if job.held and at_slot and ended_run is not None:
                    self._try(lambda: self._slurm.cancel(name))
                return Outcome(False, reason)
            if ended:
                refused = self._try(lambda: self._slurm.requeue_held(name))
                if refused and "pending execution" not in refused:
                    return Outcome(False, refused)
            else:
                refused = self._change(job, comment, decision)
        if refused is None:
            return Outcome(False, f"not done after {_ROUNDS} rounds: {reason}")
        return self._leave_held(name, refused)

    def _decide(self, job: Job, comment: JobComment) -> Decision:
        """Judge the run that has just failed, and write down what was decided before anything is done."""
        found = why_not(job, comment, self._config, self._site) or self._next_run(job, comment)
        if isinstance(found, Decision) and with_record(comment, _next_record(comment, found)) is None:
            found = Refusal("its comment has no room for what must be noted")
        if isinstance(found, Refusal):
            assert comment.end is not None
            found = _refused(comment.end.run, found.reason)
        self._book.write(job.name, found)
        return found

    def _next_run(self, job: Job, comment: JobComment) -> Union[Decision, Refusal]:
        assert comment.end is not None
        if comment.end.saw == SLOT:
            records = tuple(records_of_root(self._config.spool, job))
            return next_slot(job, comment, self._config, self._book.read(job.name), records)
        same = VERDICTS[comment.end.saw].next_run == SAME_REQUEST
        if same and not was_hit_with_others(self._config.spool, job, comment.end.run):
            return Refusal("no record of root's shows that a GPU fault hit it together with another job")
        held = held_by(job.request)
        units = {} if held is None or held.gres == "gpu" else self._units_per_gpu(job.partitions, held.gres)
        sizes = {} if held is None else self._sizes_beside_instances(job.partitions)
        limits = self._patiently(lambda: self._slurm.limits_of(job)) if self._site.limits else ()
        return decide(
            job,
            comment,
            self._config,
            self._site,
            self._book.read(job.name),
            units=units,
            sizes=sizes,
            limit_on=lambda gres, kind, count: exceeded(limits, gres, kind, count, job.nodes),
        )

    def _units_per_gpu(self, partitions: Tuple[str, ...], gres: str) -> Dict[Optional[str], int]:
        key = (partitions, gres)
        if key not in self._units:
            self._units[key] = self._patiently(lambda: self._slurm.units_per_gpu(partitions, gres))
        return self._units[key]

    def _sizes_beside_instances(self, partitions: Tuple[str, ...]) -> Dict[str, int]:
        """MiB by GPU type where MIG instances are in reach; nothing elsewhere."""
        if partitions not in self._sizes:
            types = self._patiently(lambda: self._slurm.gpu_types(partitions))
            self._sizes[partitions] = sizes_beside_instances(types)
        return self._sizes[partitions]

    def _changed(self, job: Job, comment: JobComment, decision: Decision) -> bool:
        """Whether this requeue has its new request: that and the comment are changed in one step."""
        return (
            decision.requeued
            and (job.held or job.waiting)
            and comment.record is not None
            and comment.end is None
            and comment.record.run == job.restarts
            and (not decision.request or held_by(job.request) == held_by(decision.request))
        )

    def _change(self, job: Job, comment: JobComment, decision: Decision) -> str:
        """Request and comment at once; why they may not be there. Whether they are is seen next."""
        changed = with_record(comment, _next_record(comment, decision))
        if changed is None:
            return "its comment has no room for what must be noted"
        fields = {"Gres": decision.request} if decision.request else {}
        if decision.limit_min is not None:
            fields["TimeLimit"] = str(decision.limit_min)
        if decision.verdict == SLOT and self._site.weighs:
            fields["Nice"] = str(max(job.nice, BEHIND_OTHERS))
        refused = self._try(lambda: self._slurm.update(job.name, **fields, Comment=changed))
        return refused or f"Slurm shows {job.request} after a change to {decision.request or 'its comment'}"

    def _leave_held(self, name: str, refused: str) -> Outcome:
        """Held, and Slurm does not take the change: it must not run as it was, and is not ended either.

        The controller may just have lost the change in a crash, or not know its nodes yet: the next
        hook, or `gpumem recover`, tries again.
        """
        said = f"{_HELD} its new request was refused: {refused}; scontrol release runs it as it was"
        self._try(lambda: self._say(name, said[:_MOST_SAID]))
        return Outcome(False, f"{refused}; it stays held, and the next recovery tries again")

    def _say(self, name: str, said: str) -> None:
        """Behind what others wrote into its AdminComment, in the place of what an earlier try said."""
        stands = self._slurm.admin_comment(name).partition(_HELD)[0].rstrip()
        self._slurm.update(name, AdminComment=f"{stands} {said}".lstrip())

    def _try(self, action: Callable[[], None]) -> Optional[str]:
        """Do it; what Slurm says against it, else None. How the job stands is looked at afterwards."""
        try:
            self._patiently(action)
        except SlurmUnreachableError:
            raise
        except SlurmError as error:
            time.sleep(_PAUSE_S)
            return str(error)
        return None

    def _patiently(self, action: Callable[[], _T]) -> _T:
        """Again and again while the controller is away: it may be restarting."""
        while True:
            try:
                return action()
            except SlurmError as error:
                away = isinstance(error, SlurmUnreachableError) or _AWAY.search(str(error))
                if not away or time.monotonic() > self._deadline:
                    raise
                time.sleep(0.3)


def _refused(run: int, reason: str) -> Decision:
    return Decision(run, round(time.time(), 3), False, reason)


def _next_record(comment: JobComment, decision: Decision) -> CommentRecord:
    # Its owner may have taken the record out meanwhile; what was decided stays.
    return record_of_next(comment.record or CommentRecord(), decision)
