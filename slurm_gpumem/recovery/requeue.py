"""Requeue a job with another request: hold, change, read back, release; each step by the job's own state.

Nothing is remembered between the steps. Where a job stands is read from Slurm before each: ended, held with
the old request, held with the new one, released. So whoever is killed between two steps is
continued by the next run, two runs at once do nothing twice, and a job is never let go with its old request.
"""

from __future__ import annotations

import re
import time
from typing import Callable, Dict, NamedTuple, Optional, Tuple, TypeVar, Union

from slurm_gpumem.config.recovery import RecoveryConfig
from slurm_gpumem.errors import SlurmError
from slurm_gpumem.recovery.job_comment import JobComment, parse_comment, with_record
from slurm_gpumem.recovery.plan import Plan, Refusal, plan_run, why_not
from slurm_gpumem.slurm.client import SlurmUnreachableError
from slurm_gpumem.slurm.config_show import Site
from slurm_gpumem.slurm.controller import Controller
from slurm_gpumem.slurm.gres import held_by
from slurm_gpumem.slurm.queue import Job

_T = TypeVar("_T")
_ROUNDS = 12
_PAUSE_S = 0.05
_AWAY = re.compile(r"(?i)unable to contact|connection refused|timed out|zero bytes|connection failure")


class Outcome(NamedTuple):
    """What came of it."""

    requeued: bool
    reason: str


class Requeue:
    """Brings one job after the other back."""

    def __init__(self, slurm: Controller, config: RecoveryConfig, site: Site, deadline: float) -> None:
        self._slurm, self._config, self._site = slurm, config, site
        self._deadline = deadline
        self._units: Dict[Tuple[Tuple[str, ...], str], Dict[Optional[str], int]] = {}

    def recover(self, name: str) -> Outcome:
        """Take the job from wherever it stands to the queue, if it belongs there."""
        reason = ""
        for _ in range(_ROUNDS):
            job = self._patiently(lambda: self._slurm.job(name))
            if job is None:
                return Outcome(False, "Slurm does not know it any more")
            comment = parse_comment(job.comment)
            if self._changed(job, comment):
                if job.held:
                    self._try(lambda: self._slurm.release(name))
                    continue
                self._prefer(job)
                return Outcome(True, reason or "it is back in the queue")
            if not (job.held or job.ended):
                return Outcome(False, reason or f"it is {job.state} ({job.reason})")
            if comment.end is None or comment.end.run != job.restarts - (1 if job.held else 0):
                return Outcome(False, "what its comment says is of another run")
            found = self._plan(job, comment)
            if isinstance(found, Refusal):
                # Held anyway? Then by somebody else: we would not have.
                return Outcome(False, found.reason)
            reason = found.reason
            if job.ended:
                refused = self._try(lambda: self._slurm.requeue_held(name))
                if refused and "pending execution" not in refused:
                    return Outcome(False, refused)
            else:
                refused = self._change(job, comment, found)
                if refused:
                    return self._give_up(job, refused)
        return Outcome(False, f"not done after {_ROUNDS} rounds: {reason}")

    def _plan(self, job: Job, comment: JobComment) -> Union[Plan, Refusal]:
        refusal = why_not(job, comment, self._config, self._site)
        if refusal is not None:
            return refusal
        held = held_by(job.request)
        units = {} if held is None or held.gres == "gpu" else self._units_per_gpu(job.partitions, held.gres)
        run = job.restarts if job.held else job.restarts + 1
        found = plan_run(job, comment, self._config, self._site, units, run)
        if isinstance(found, Plan) and with_record(comment, found.record) is None:
            return Refusal("its comment has no room for what must be noted")
        return found

    def _units_per_gpu(self, partitions: Tuple[str, ...], gres: str) -> Dict[Optional[str], int]:
        key = (partitions, gres)
        if key not in self._units:
            self._units[key] = self._patiently(lambda: self._slurm.units_per_gpu(partitions, gres))
        return self._units[key]

    def _changed(self, job: Job, comment: JobComment) -> bool:
        """Whether this requeue has its new request: that and the comment are changed in one step."""
        return (
            comment.record is not None
            and comment.end is None
            and comment.record.run == job.restarts
            and job.restarts > 0
            and (job.held or job.waiting)
        )

    def _change(self, job: Job, comment: JobComment, plan: Plan) -> Optional[str]:
        """Request and comment at once, then see whether they are there; why not, else None."""
        changed = with_record(comment, plan.record) or ""
        fields = {} if plan.request is None else {"Gres": plan.request}
        refused = self._try(lambda: self._slurm.update(job.name, **fields, Comment=changed))
        now = self._patiently(lambda: self._slurm.job(job.name))
        if now is None:
            return "Slurm does not know it any more"
        wanted = job.request if plan.request is None else plan.request
        # Trust no return code: an update can be refused and done, or done in the display only.
        if held_by(now.request) == held_by(wanted) and parse_comment(now.comment).end is None:
            return None
        return refused or f"Slurm shows {now.request} after a change to {wanted}"

    def _give_up(self, job: Job, reason: str) -> Outcome:
        """Held, and Slurm does not take the change: it must neither run as it was nor wait forever."""
        self._try(lambda: self._slurm.cancel(job.name))
        return Outcome(False, f"{reason}; it could not come back and is cancelled")

    def _prefer(self, job: Job) -> None:
        """Ahead of those that came after its first run. After the release, which would reset it."""
        if self._config.priority and job.priority != self._config.priority:
            self._try(lambda: self._slurm.update(job.name, Priority=str(self._config.priority)))
        elif self._config.nice and not self._config.priority and job.nice != self._config.nice:
            self._try(lambda: self._slurm.update(job.name, Nice=str(self._config.nice)))

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
