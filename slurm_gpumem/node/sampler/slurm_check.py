"""What Slurm itself says of the jobs on this node: asked for one job at a time, in the background.

The record in a job's comment is its owner's word. Slurm's own count of shards is the truth that limits are
checked against, and whether it still has a job says which of our jobs are over. A question for one job costs
the controller the same however long its queue is; one for all jobs of a node makes it send the whole queue.
"""

from __future__ import annotations

import time
from typing import Dict, Mapping, NamedTuple, Optional

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.slurm.client import Commands
from slurm_gpumem.slurm.state.background import Background
from slurm_gpumem.slurm.state.queue import SlurmJob, is_unknown_job, parse_slurm_job, slurm_job_command

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

    def poll(self, every_s: Mapping[int, float]) -> Optional[Answer]:
        """An answer, if one has just come; then the next question, for the job that has waited longest.

        `every_s` says how often each job is to be asked about. No answer is not "no job": nobody is swept
        because the controller is away.
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
                self._slurm.ask(slurm_job_command(waiting))
        return answer

    def warn(self, job_id: int, message: str) -> None:
        """A line on the job's stderr."""
        self._slurm.warn(job_id, message)

    def cancel(self, job_id: int) -> None:
        """End the job."""
        self._slurm.cancel(job_id)

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
