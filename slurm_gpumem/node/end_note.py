"""What a job has used so far, in a file that its own user may read; the task epilog makes a line of it.

Written only for jobs that want that line, when there is a new peak or company, and else every half minute.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Tuple

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.files import remove, write_json
from slurm_gpumem.node.jobs import NodeJob, RunFolder
from slurm_gpumem.node.records import group_of

SCHEMA = "gpumem-usage/1"
_EVERY_S = 30.0
_KEYS = ("peak_mib", "mean_mib", "energy_j", "met", "samples", "shards", "limit_mib", "estimate_mib")


class EndNotes:
    """Remembers what it has written."""

    def __init__(self, folder: RunFolder, config: NodeConfig) -> None:
        self._folder = folder
        self._config = config
        self._written: Dict[int, Tuple[Any, ...]] = {}
        self._at: Dict[int, float] = {}

    def write(self, jobs: Mapping[int, NodeJob], tables: Mapping[str, Mapping[str, Any]], now: float) -> None:
        """Bring the files up to date."""
        for job_id, job in jobs.items():
            table = tables.get(str(job_id))
            if table is None or not self._config.wants_end_line(job.claimed.tell == "end"):
                continue
            latest = (table["peak_mib"], len(table["met"]), table["limit_mib"])
            if latest != self._written.get(job_id) or now - self._at[job_id] >= _EVERY_S:
                self._write(job, table)
                self._written[job_id], self._at[job_id] = latest, now

    def forget(self, job_id: int) -> None:
        """The job is gone; its epilog may have been quicker than our last write."""
        if self._written.pop(job_id, None) is not None:
            remove(self._folder.usage_file(job_id))
            del self._at[job_id]

    def _write(self, job: NodeJob, table: Mapping[str, Any]) -> None:
        sm = [gpu.get("sm_active_share") for gpu in table["gpu"].values()]
        known = [share for share in sm if share is not None]
        note = {
            "schema": SCHEMA,
            "job_id": job.job_id,
            "shard_mib": self._config.shard_mib,
            "sm_active_share": round(sum(known) / len(known), 4) if known else None,
            **{key: table.get(key) for key in _KEYS},
        }
        write_json(
            self._folder.usage_file(job.job_id),
            note,
            mode=0o640,
            reader_uid=job.uid,
            reader_gid=group_of(job.uid),
        )
