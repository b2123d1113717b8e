"""What Slurm itself says of the jobs on this node: one question for all of them, asked in the background.

The record in a job's comment is its owner's word. Slurm's own count of shards is the truth that
limits are checked against, and its list of jobs says which of our jobs are over.
"""

from __future__ import annotations

import time
from typing import Dict, Optional

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.slurm.background import Background
from slurm_gpumem.slurm.client import Commands
from slurm_gpumem.slurm.queue import SlurmJob, node_jobs_command, parse_node_jobs

_URGENT_S = 2.0


class SlurmTruth:
    """Asks now and then, never waits: `poll` gives an answer when one has come."""

    def __init__(self, config: NodeConfig, node: str) -> None:
        self._every_s = config.slurm_every_s
        self._slurm = Background(Commands(config.slurm_env, config.slurm_bin))
        self._node = node
        self._asked = float("-inf")
        self.asked_at = 0.0
        """Unix time of the question whose answer came last, or is awaited."""

    def poll(self, *, urgent: bool) -> Optional[Dict[int, SlurmJob]]:
        """The jobs of this node when an answer has just come, those that just ended among them."""
        if self._slurm.is_asking:
            answer = self._slurm.answer()
            # No answer is not "no jobs": nobody is swept because the controller is away.
            return None if answer is None else parse_node_jobs(answer)
        now = time.monotonic()
        if now - self._asked >= (min(_URGENT_S, self._every_s) if urgent else self._every_s):
            self._asked, self.asked_at = now, time.time()
            self._slurm.ask(node_jobs_command(self._node))
        return None

    def warn(self, job_id: int, message: str) -> None:
        """A line on the job's stderr."""
        self._slurm.warn(job_id, message)

    def cancel(self, job_id: int) -> None:
        """End the job."""
        self._slurm.cancel(job_id)

    def requeue(self, job_id: int) -> None:
        """Back into the queue; Slurm refuses where the job or the site does not allow it."""
        self._slurm.requeue(job_id)

    def close(self) -> None:
        """Wait for what was started; kill what hangs."""
        self._slurm.close()
