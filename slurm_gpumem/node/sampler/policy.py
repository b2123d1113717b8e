"""What is done about a job that could not be fenced, takes more than its shards or runs outside MPS."""

from __future__ import annotations

from typing import Dict, List, Optional, Set, Tuple

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.formats.job_record import WITHOUT_MPS
from slurm_gpumem.node.jobs import NodeJob

_MOST_REQUEUES = 2
"""A node that cannot fence anything must not send a job round forever."""


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
            due.append((self._config.on_outside_mps, text))
        if self._lasts(job_id, "outside", outside > 0, now):
            text = f"job {job_id} has {outside} GPU process(es) outside MPS: no memory limit holds them"
            due.append((self._config.on_outside_mps, text))
        return due

    def requeues(self, job: NodeJob) -> bool:
        """Whether a job that could not be fenced is to be requeued; True once per run."""
        key = (job.job_id, "start")
        if (
            self._config.without_mps != "requeue"
            or job.mode != WITHOUT_MPS
            or job.claim is None
            or job.restarts >= _MOST_REQUEUES
            or key in self._done
        ):
            return False
        self._done.add(key)
        return True

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
