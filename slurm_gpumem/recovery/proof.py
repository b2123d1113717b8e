"""What root measured of a run: a fault that hit it together with other jobs.

Everything else that EpilogSlurmctld knows of a job's end is its owner's word: the log, the verdict in the
comment, the exit code. The node's job record is root's. The sampler writes it while the job runs, so it is
there where `node.spool` is a file system that the controller's host shares and SlurmUser may read.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Iterator

from slurm_gpumem.files import read_plain
from slurm_gpumem.formats.job_record import MAX_BYTES, OVERRUN, BadRecordError, JobRecord, parse_job_record
from slurm_gpumem.slurm.state.queue import Job

_ROOT = 0
_CLOSING_S, _PAUSE_S = 3.0, 0.1


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
        time.sleep(_PAUSE_S)


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
