"""What Slurm itself says of the jobs on this node: one question for all of them, asked in the background.

The record in a job's comment is its owner's word. Slurm's own count of shards is the truth that
limits are checked against, and its list of jobs says which of our jobs are over.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import dataclass
from typing import Dict, List, Optional

from slurm_gpumem.config.node import NodeConfig

_TIMEOUT_S = 10.0
_SHARED = re.compile(r"(?:^|[,:/])(?:shard|mps)(?::[A-Za-z][^:,]*)?:([0-9]+)")
_FINAL = re.compile(
    r"(?:BOOT_FAIL|CANCELLED|COMPLETED|DEADLINE|FAILED|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED|REVOKED|TIMEOUT)"
)
_COLUMNS = "JobID:16 ,UserID:16 ,State:24 ,tres-per-node:128 "
_WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")


@dataclass(frozen=True)
class SlurmJob:
    """A job that Slurm has on this node."""

    job_id: int
    uid: int
    shards: Optional[int]
    """Per node; None for a job without shared GPUs."""
    state: str

    @property
    def is_over(self) -> bool:
        """Whether it ended for good; Slurm remembers it for a while (MinJobAge)."""
        return _FINAL.fullmatch(self.state) is not None

    @property
    def is_here(self) -> bool:
        """Whether it is on its node, computing or not."""
        return not self.is_over and self.state not in _WAITING


def parse_jobs(text: str) -> Dict[int, SlurmJob]:
    """The answer of `squeue -O JobID,UserID,State,tres-per-node`; the last may be empty."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 3 and words[0].isdigit() and words[1].isdigit():
            match = _SHARED.search(words[3]) if len(words) > 3 else None
            job = SlurmJob(int(words[0]), int(words[1]), int(match[1]) if match else None, words[2])
            found[job.job_id] = job
    return found


class SlurmTruth:
    """Asks now and then, never waits: `poll` gives an answer when one has come."""

    def __init__(self, config: NodeConfig, node: str) -> None:
        self._config = config
        self._node = node
        self._asked = float("-inf")
        self.asked_at = 0.0
        """Unix time of the question whose answer came last, or is awaited."""
        self._query: Optional[subprocess.Popen[bytes]] = None
        self._jobs: List[subprocess.Popen[bytes]] = []

    def poll(self, *, urgent: bool) -> Optional[Dict[int, SlurmJob]]:
        """The jobs of this node when an answer has just come, those that just ended among them."""
        now = time.monotonic()
        self._jobs = [job for job in self._jobs if job.poll() is None]
        if self._query is None:
            wait = min(2.0, self._config.slurm_every_s) if urgent else self._config.slurm_every_s
            if now - self._asked >= wait:
                self._asked, self.asked_at = now, time.time()
                self._query = self._start("squeue", "-h", "-w", self._node, "-t", "all", "-O", _COLUMNS)
            return None
        if self._query.poll() is None:
            if now - self._asked > _TIMEOUT_S:
                self._query.kill()
                self._query.wait()
                self._query = None
            return None
        query, self._query = self._query, None
        assert query.stdout is not None
        with query.stdout:
            text = query.stdout.read().decode(errors="replace")
        # No answer is not "no jobs": nobody is swept because the controller is away.
        return parse_jobs(text) if query.returncode == 0 else None

    def warn(self, job_id: int, message: str) -> None:
        """A line on the job's stderr."""
        self._run("scontrol", "notify", str(job_id), message)

    def cancel(self, job_id: int) -> None:
        """End the job."""
        self._run("scancel", str(job_id))

    def close(self) -> None:
        """Wait for what was started; kill what hangs."""
        for job in [*self._jobs, *([self._query] if self._query else [])]:
            try:
                job.wait(timeout=2)
            except subprocess.TimeoutExpired:
                job.kill()
                job.wait()

    def _run(self, *command: str) -> None:
        started = self._start(*command)
        if started is not None:
            self._jobs.append(started)

    def _start(self, program: str, *arguments: str) -> Optional[subprocess.Popen[bytes]]:
        folder = self._config.slurm_bin
        try:
            return subprocess.Popen(
                [str(folder / program) if folder else program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if program == "squeue" else subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **self._config.slurm_env},
            )
        except OSError:
            return None
