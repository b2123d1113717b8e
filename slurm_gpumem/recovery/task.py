"""What the task epilog does, as the job's user, at the end of a batch script of ours.

`python -I -m slurm_gpumem.recovery.task`: it reads the end of the job's own log, weighs it against what was
measured, puts its word into the job's comment and a line at the end of the job's stderr. It does not know the
exit code; whether the job failed at all is the controller's to say. Nothing it does fails the job.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Dict, Mapping, Optional

from slurm_gpumem.config.node import load_node_config, run_dir, site_config_path
from slurm_gpumem.config.recovery import RecoveryConfig, load_recovery_config
from slurm_gpumem.errors import SlurmError
from slurm_gpumem.formats.comment import NEIGHBOUR, OOM, End
from slurm_gpumem.formats.job_record import BadRecordError, read_job_record, record_name
from slurm_gpumem.node.jobs import RunFolder
from slurm_gpumem.recovery.controller import Controller, Job, job_name
from slurm_gpumem.recovery.neighbours import company_at_fault
from slurm_gpumem.recovery.patterns import Kind
from slurm_gpumem.recovery.sighting import Sighting, look
from slurm_gpumem.recovery.tail import is_own_stderr, read_own_stderr, read_tail, time_limit
from slurm_gpumem.recovery.weigh import Measured, weigh
from slurm_gpumem.recovery.words import Words, advice, read_words, with_end

_FRESH_S = 3.0
"""A record written so lately has seen the run's end."""


def main() -> int:
    """Entry point; always 0."""
    try:
        _task_epilog(os.environ)
    except (SlurmError, OSError, ValueError) as error:
        # The job's own log is the only place where its user may find it.
        _tell(f"gpumem: how this run ended was not noted: {error}")
    return 0


def _task_epilog(env: Mapping[str, str]) -> None:
    name, number = job_name(env), env.get("SLURM_JOB_ID", "")
    if name is None or not number.isdigit():
        return
    config = load_recovery_config(site_config_path())
    slurm = Controller(config.slurm_env)
    seen = _look(slurm, name)
    if seen.kind in (None, Kind.OTHER):
        return
    run = int(env.get("SLURM_RESTART_COUNT") or 0)
    company = []
    if seen.kind is Kind.FAULT:
        node = load_node_config(site_config_path())
        company = company_at_fault(RunFolder(run_dir()), node, int(number), os.getuid())
    saw = weigh(seen, _measured(config, env, int(number), run), company)
    job = slurm.job(name) if saw else None
    words = read_words(job.comment) if job else None
    if saw is None or job is None or words is None or words.record is None:
        return
    end = End(run, saw, seen.voice, seen.need_mib)
    comment = with_end(words, end)
    if comment is None:
        _tell("gpumem: how this run ended was not noted: the job's comment has no room left")
        return
    slurm.update(name, Comment=comment, **_consent(slurm, job, words, end, config))
    _tell(advice(end, words, config.ladder, enabled=config.enabled, default=config.on_oom))


def _look(slurm: Controller, name: str) -> Sighting:
    """The end of its stderr, and of its stdout where that is another file and stderr says nothing."""
    with time_limit():
        seen = look(read_own_stderr())
    if seen.kind is not None:
        return seen
    path = slurm.stdout_of(name)
    with time_limit():
        return look(read_tail(path)) if path and not is_own_stderr(path) else seen


def _measured(config: RecoveryConfig, env: Mapping[str, str], job_id: int, run: int) -> Measured:
    """What the node's record says of this run so far; a user may read that of their own job."""
    path = config.spool / record_name(job_id, run, env.get("SLURMD_NODENAME", ""))
    try:
        measured = read_job_record(path).measured
    except (OSError, BadRecordError):
        return Measured()
    limit = measured.limit_mib
    shards = env.get("SLURM_SHARDS_ON_NODE", "")
    if limit is None and shards.isdigit():
        limit = int(shards) * config.shard_mib
    fresh = time.time() - path.stat().st_mtime < _FRESH_S
    return Measured(measured.peak_mib, limit, measured.samples, fresh)


def _consent(slurm: Controller, job: Job, words: Words, end: End, config: RecoveryConfig) -> Dict[str, str]:
    """Where the site's JobRequeue=0 stands against what the owner agreed to, lift it: later nobody can."""
    agreed = words.record is not None and (words.record.on_oom or config.on_oom) == "requeue"
    if job.may_requeue or not agreed or end.saw not in (OOM, NEIGHBOUR) or slurm.site().requeues:
        return {}
    return {"Requeue": "1"}


def _tell(line: Optional[str]) -> None:
    """One line at the end of the job's stderr, which is ours too."""
    if line:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
