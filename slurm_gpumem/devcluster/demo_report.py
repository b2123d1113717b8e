"""The demo's last part: the nodes' hooks measure its jobs, and `gpumem report` shows the results."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Iterable

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.formats.job_record import BadRecordError, read_job_record

_PATIENCE_S = 60.0


def report(cluster: Cluster, job_ids: Iterable[str]) -> str:
    """`gpumem report` of the demo's jobs, once their records are closed."""
    deadline = time.monotonic() + _PATIENCE_S
    waiting = {*job_ids}
    while waiting and time.monotonic() < deadline:
        waiting = {job_id for job_id in waiting if not _closed(cluster.layout.records, job_id)}
        time.sleep(0.1)
    done = cluster.run(
        [str(Path(sys.executable).with_name("gpumem")), "report"],
        env={"PYTHONIOENCODING": sys.stdout.encoding or "ascii", "XDG_CACHE_HOME": str(cluster.layout.root)},
        timeout_s=_PATIENCE_S,
    )
    return (done.stdout + done.stderr).rstrip()


def _closed(records: Path, job_id: str) -> bool:
    for path in records.glob(f"{job_id}.*.json"):
        try:
            return read_job_record(path).end is not None
        except (OSError, BadRecordError):
            return False
    return False
