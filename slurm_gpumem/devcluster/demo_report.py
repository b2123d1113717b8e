"""The demo's last part: the nodes' hooks measure its jobs, and `gpumem report` shows the results."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Iterable, Optional

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.errors import DevClusterError
from slurm_gpumem.formats.job_record import BadRecordError, JobRecord, read_job_record

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


def wait_until_measured(cluster: Cluster, job_id: str) -> None:
    """Until its record has its memory."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        record = _record(cluster.layout.records, job_id)
        if record is not None and record.measured.peak_mib:
            return
        time.sleep(0.1)
    raise DevClusterError(f"job {job_id} was not measured within {_PATIENCE_S:.0f} s")


def _closed(records: Path, job_id: str) -> bool:
    record = _record(records, job_id)
    return record is not None and record.end is not None


def _record(records: Path, job_id: str) -> Optional[JobRecord]:
    for path in records.glob(f"{job_id}.*.json"):
        with contextlib.suppress(OSError, BadRecordError):  # a moment later it is whole
            return read_job_record(path)
    return None
