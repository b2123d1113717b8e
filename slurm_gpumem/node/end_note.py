"""Leaves a note on what a job has used so far, for its own user: the task epilog makes a line of it.

Written only for jobs that want that line, when there is a new peak or company, and else every half minute.
"""

from __future__ import annotations

from typing import Dict, Mapping, Optional, Tuple

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.files import remove
from slurm_gpumem.formats.gpu_names import profile_name
from slurm_gpumem.formats.job_record import Measurement
from slurm_gpumem.formats.live import LiveJob
from slurm_gpumem.formats.notes import UsageNote, write_usage_note
from slurm_gpumem.node.jobs import NodeJob, RunFolder

_EVERY_S = 30.0
_Latest = Tuple[Optional[float], int, Optional[int]]


class EndNotes:
    """Remembers what it has written."""

    def __init__(self, folder: RunFolder, config: NodeConfig) -> None:
        self._folder = folder
        self._config = config
        self._written: Dict[int, _Latest] = {}
        self._at: Dict[int, float] = {}

    def write(self, jobs: Mapping[int, NodeJob], seen: Mapping[int, LiveJob], now: float) -> None:
        """Bring the files up to date."""
        for job_id, job in jobs.items():
            live = seen.get(job_id)
            if live is None or not self._config.wants_end_line(job.claimed.tell == "end"):
                continue
            latest = (live.measured.peak_mib, len(live.measured.met), live.measured.limit_mib)
            if latest != self._written.get(job_id) or now - self._at[job_id] >= _EVERY_S:
                write_usage_note(self._folder.usage_file(job_id), self._note(job, live), job.uid)
                self._written[job_id], self._at[job_id] = latest, now

    def forget(self, job_id: int) -> None:
        """The job is gone; its epilog may have been quicker than our last write."""
        if self._written.pop(job_id, None) is not None:
            remove(self._folder.usage_file(job_id))
            del self._at[job_id]

    def _note(self, job: NodeJob, live: LiveJob) -> UsageNote:
        measured = live.measured
        shares = [gpu.sm_active_share for gpu in measured.gpu.values() if gpu.sm_active_share is not None]
        return UsageNote(
            job.job_id,
            shard_mib=self._config.shard_mib,
            shards=measured.shards,
            limit_mib=measured.limit_mib,
            estimate_mib=live.estimate_mib,
            peak_mib=measured.peak_mib,
            energy_j=measured.energy_j,
            sm_active_share=round(sum(shares) / len(shares), 4) if shares else None,
            slowdown=_slowdown(measured, job.now() - job.started),
            met=measured.met,
            samples=measured.samples,
            profile=", ".join(filter(None, (profile_name(gpu.name) for gpu in measured.gpu.values()))),
            # After running out of memory it has more for another reason.
            request_mib=None if job.claimed.retry else job.claimed.request_mib,
        )


def _slowdown(measured: Measurement, run_s: float) -> Optional[float]:
    alone = measured.time_alone(run_s)
    return round(run_s / alone, 3) if alone and measured.met else None
