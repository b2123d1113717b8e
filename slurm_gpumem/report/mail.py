"""What the mail at a job's end says of its GPU memory: a few lines, from the job's comment and its records.

`python -I -m slurm_gpumem.report.mail`, called by prolog/mail.sh as SlurmUser with slurmctld's SLURM_*
variables. It prints nothing of a job that is not ours. The comment is the words of the job's owner.
"""

from __future__ import annotations

import os
import sys
import time
from typing import List, Mapping, Optional, Sequence

from slurm_gpumem.accounting.store import attempt_of
from slurm_gpumem.config.node import load_node_config
from slurm_gpumem.config.paths import site_config_path
from slurm_gpumem.errors import UsageError
from slurm_gpumem.formats.comment import CommentRecord, parse_record
from slurm_gpumem.formats.job_record import BadRecordError, JobRecord, read_job_record, record_name
from slurm_gpumem.report.causes import cause_lines, cause_of
from slurm_gpumem.slurm.node_names import expand_names
from slurm_gpumem.text import printable
from slurm_gpumem.units import ceil_div, format_mib

_CLOSING_S, _PAUSE_S = 8.0, 0.2
"""slurmctld writes when a job is completing; its Epilog closes the record a moment later."""
_MOST_NODES, _MOST_RUNS = 16, 8


def mail_lines(env: Mapping[str, str], records: Sequence[JobRecord]) -> List[str]:
    """The lines for a job of which these records are there; none for one that is not ours."""
    claim = parse_record(env.get("SLURM_JOB_COMMENT", ""))
    if claim is None:
        return []
    runs = [attempt_of(record) for record in records]
    model = printable(claim.model) + (f", batch {claim.batch}" if claim.batch else "")
    peak = max((run.peak_mib for run in runs if run.peak_mib is not None), default=None)
    shares = [run.limit_mib for run in runs if run.limit_mib is not None]
    share = f", {format_mib(shares[-1])} given" if shares else ""
    needed = "not known" if claim.request_mib is None else format_mib(claim.request_mib)
    estimate = "by hand" if claim.estimate_mib is None else format_mib(claim.estimate_mib)
    measured = "not measured, or not readable here" if peak is None else format_mib(peak)
    cause = cause_of(env.get("SLURM_JOB_STATE", ""), runs)
    if runs and runs[-1].oom and claim.on_oom == "requeue":
        cause = cause._replace(next="nothing, if Slurm runs it again with more (the end of its log says so)")
    return [
        f"GPU memory{f' of {model}' if model else ''} (gpumem report {env.get('SLURM_JOB_ID', '')}):",
        f"  estimate   {estimate}",
        f"  need       {needed}{share}",
        f"  peak       {measured}",
        *([f"  {line}" for line in cause_lines(cause)] or _next_time(claim, peak)),
    ]


def _next_time(claim: CommentRecord, peak: Optional[int]) -> List[str]:
    if not peak:
        return []
    enough = ceil_div(round(peak * 1.02), 1024)  # as for a run that is remembered
    same = claim.request_mib is not None and ceil_div(claim.request_mib, 1024) == enough
    return [f"  next time  {'the same' if same else f'gpusbatch --gpu-mem {enough}G SCRIPT would do'}"]


def read_records(env: Mapping[str, str]) -> List[JobRecord]:
    """The records of the job's runs that may be read here; waits a moment until the last is closed."""
    config = load_node_config(site_config_path())
    job_id, uid, run = (int(env.get(f"SLURM_JOB_{name}") or 0) for name in ("ID", "UID", "RESTART_COUNT"))
    nodes = expand_names(env.get("SLURM_JOB_NODELIST", ""))[:_MOST_NODES]
    deadline = time.monotonic() + _CLOSING_S
    while True:
        found = []
        for number in range(max(0, run + 1 - _MOST_RUNS), run + 1):
            for node in nodes:
                try:
                    found.append(read_job_record(config.spool / record_name(job_id, number, node)))
                except FileNotFoundError:
                    continue
                except (OSError, BadRecordError):
                    return []  # not ours to read: waiting helps nobody
        found = [record for record in found if (record.job_id, record.uid) == (job_id, uid)]
        closed = [record for record in found if record.restarts == run and record.end is not None]
        if len(closed) == len(nodes) or time.monotonic() > deadline:
            return found
        time.sleep(_PAUSE_S)


def main() -> int:
    """Print the lines."""
    if parse_record(os.environ.get("SLURM_JOB_COMMENT", "")) is None:
        return 0
    try:
        records = read_records(os.environ)
    except (UsageError, ValueError):
        records = []  # an older or newer slurmctld names them otherwise
    lines = mail_lines(os.environ, records)
    if lines:
        print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
