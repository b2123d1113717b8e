"""What the task epilog does, as the job's user, at the end of one of our batch scripts.

`python -I -m slurm_gpumem.recovery.task`: it reads the end of the job's own log, checks it against what was
measured, notes the verdict in the job's comment and writes a line at the end of the job's stderr. It does
not know the exit code; whether the job failed at all is the controller's to say. Nothing it does fails the
job.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from math import ceil
from typing import Dict, List, Mapping, Optional

from slurm_gpumem.config.node import load_node_config, run_dir
from slurm_gpumem.config.paths import site_config_path
from slurm_gpumem.config.recovery import RecoveryConfig, load_recovery_config
from slurm_gpumem.errors import SlurmError, UsageError
from slurm_gpumem.formats.comment import End
from slurm_gpumem.formats.job_record import (
    CROWDED,
    OVERRUN,
    BadRecordError,
    Measurement,
    read_job_record,
    record_name,
)
from slurm_gpumem.formats.task_file import read_task_gpus
from slurm_gpumem.formats.verdicts import NO_RUN, SAVED, SLOT, VERDICTS
from slurm_gpumem.node.gpus import is_instance
from slurm_gpumem.node.jobs import RunFolder
from slurm_gpumem.recovery.end_message import RUN_ENDED, end_message
from slurm_gpumem.recovery.job_comment import JobComment, parse_comment, with_end
from slurm_gpumem.recovery.log_verdict import LogVerdict, judge_log
from slurm_gpumem.recovery.neighbours import jobs_hit_too
from slurm_gpumem.recovery.patterns import Kind
from slurm_gpumem.recovery.plan import why_not
from slurm_gpumem.recovery.refusal import Refusal
from slurm_gpumem.recovery.slots import next_slot, state_of_run
from slurm_gpumem.recovery.tail import is_own_stderr, read_own_stderr, read_tail, time_limit
from slurm_gpumem.recovery.verdict import Measured, verdict_on
from slurm_gpumem.slurm.client import Commands
from slurm_gpumem.slurm.node_names import expand_names
from slurm_gpumem.slurm.state.controller import Controller
from slurm_gpumem.slurm.state.nodes import GPU_TYPE_CAN_CHANGE
from slurm_gpumem.slurm.state.queue import Job, job_name

_LOOKS = 3
"""Of the sampler: the fault, the processes gone, and one that was just over."""
_FRESH_S = 3.0
"""A record written this recently has seen the run's end."""


def main() -> int:
    """Entry point; always 0."""
    try:
        _task_epilog(os.environ)
    except (SlurmError, OSError, ValueError) as error:
        # The job's own log is the only place where its user may find it.
        _write_line(f"gpumem: how this run ended was not noted: {error}")
    return 0


def _task_epilog(env: Mapping[str, str]) -> None:
    name, number = job_name(env), env.get("SLURM_JOB_ID", "")
    if name is None or not number.isdigit():
        return
    run = int(env.get("SLURM_RESTART_COUNT") or 0)
    node = load_node_config(site_config_path())
    config = load_recovery_config(site_config_path())
    slurm = Controller(Commands(config.slurm_env, config.slurm_bin))
    saved = state_of_run(env, run)
    if saved is not None and saved.ended:
        _note_checkpoint(slurm, name, config, End(run, SLOT, save_s=saved.save_s))
        return
    log = _judge_logs(slurm, name)
    measured = _measured(config, env, int(number), run)
    if log.kind in (None, Kind.OTHER) and not measured.overran:
        if saved is not None:
            _note_checkpoint(slurm, name, config, End(run, SAVED, save_s=saved.save_s))
        return
    hit_too = []
    if log.kind is Kind.FAULT:
        hit_too = jobs_hit_too(
            RunFolder(run_dir()), node, int(number), os.getuid(), wait_s=_LOOKS * node.interval_s + 1.0
        )
    verdict = verdict_on(log, measured, hit_too)
    job = slurm.job(name) if verdict else None
    comment = parse_comment(job.comment) if job else None
    if verdict is None or job is None or comment is None or comment.record is None:
        return
    # Of a job that the node ended, what it held is the least that it needs.
    need = ceil(measured.peak_mib) if measured.overran and measured.peak_mib else log.need_mib
    end = End(run, verdict, log.pattern, need, saved.save_s if saved else None)
    noted = with_end(comment, end)
    if noted is None:
        _write_line("gpumem: how this run ended was not noted: the job's comment has no room left")
        return
    slurm.update(name, Comment=noted, **_consent(slurm, job, comment, end))
    gpus = read_task_gpus(RunFolder(run_dir()).task_file(int(number)))
    on_instance = any(is_instance(gpu.uuid) for gpu in gpus)
    _write_line(
        end_message(
            end,
            comment,
            config.ladder,
            enabled=config.enabled,
            on_instance=on_instance,
            type_can_change=not on_instance or slurm.site().version >= GPU_TYPE_CAN_CHANGE,
        )
    )


def _note_checkpoint(slurm: Controller, name: str, config: RecoveryConfig, end: End) -> None:
    """What its program says of its checkpoints, for the controller and for the script's later runs."""
    job = slurm.job(name)
    comment = parse_comment(job.comment) if job else None
    if job is None or comment is None or comment.record is None:
        return
    # Without slots it was told by a signal of its owner's or its site's.
    end = end._replace(used_s=job.used_s) if comment.record.slot else end._replace(saw=SAVED)
    noted = with_end(comment, end)
    if noted is None:
        return
    # Consent to slots is consent to be requeued, which JobRequeue=0 would refuse later.
    lifts = end.saw == SLOT and not job.may_requeue and not slurm.site().requeues
    slurm.update(name, Comment=noted, **({"Requeue": "1"} if lifts else {}))
    if end.saw == SLOT:
        job = job._replace(may_requeue=job.may_requeue or lifts)
        _put_back(slurm, job, comment._replace(end=end), config)


def _put_back(slurm: Controller, job: Job, comment: JobComment, config: RecoveryConfig) -> None:
    """Requeue the job while it still runs, so that Slurm never takes it for one that is over.

    It is held; EpilogSlurmctld gives it its next request and lets it go, or cancels it.
    """
    refused = why_not(job, comment, config, slurm.site()) or next_slot(job, comment, config, {}, ())
    if isinstance(refused, Refusal):
        _write_line(f"{RUN_ENDED} {VERDICTS[SLOT].ended}; it is not run again: {refused.reason}.")
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which Slurm sends to a job that it requeues
    now = slurm.job(job.name)
    if now is not None and now.state == "RUNNING":
        slurm.requeue_held(job.name)
        _write_line(
            f"{RUN_ENDED} {VERDICTS[SLOT].ended}; Slurm runs it again, behind others, if time is left."
        )


def _judge_logs(slurm: Controller, name: str) -> LogVerdict:
    """The end of its stderr, and of its stdout where that is another file and stderr says nothing."""
    with time_limit():
        found = judge_log(read_own_stderr())
    if found.kind is not None:
        return found
    path = slurm.stdout_of(name)
    with time_limit():
        return judge_log(read_tail(path)) if path and not is_own_stderr(path) else found


def _measured(config: RecoveryConfig, env: Mapping[str, str], job_id: int, run: int) -> Measured:
    """What its nodes' records say about this run so far; a user may read those of their own job.

    Of several nodes the most that was used counts, and it is fresh only where all records are.
    """
    here = env.get("SLURMD_NODENAME", "")
    names = [record_name(job_id, run, node) for node in _nodes(env.get("SLURM_JOB_NODELIST", "")) or [here]]
    found: List[Measurement] = []
    fresh = True
    for path in (config.spool / name for name in names):
        try:
            found.append(read_job_record(path).measured)
            fresh = fresh and time.time() - path.stat().st_mtime < _FRESH_S
        except (OSError, BadRecordError):
            fresh = False
    if not found:
        return Measured()
    most = max(found, key=lambda measured: measured.peak_mib or 0.0)
    limit = most.limit_mib
    shards = env.get("SLURM_SHARDS_ON_NODE", "")
    if limit is None and shards.isdigit():
        limit = int(shards) * config.shard_mib
    kinds = {event.kind for measured in found for event in measured.events}
    return Measured(
        most.peak_mib,
        limit,
        min(measured.samples for measured in found),
        fresh,
        overran=OVERRUN in kinds,
        crowded=CROWDED in kinds,
    )


def _nodes(text: str) -> List[str]:
    try:
        return expand_names(text)
    except UsageError:
        return []  # not Slurm's own words


def _consent(slurm: Controller, job: Job, comment: JobComment, end: End) -> Dict[str, str]:
    """Where the site's JobRequeue=0 stands against what the owner agreed to, lift it: later nobody can."""
    agreed = comment.record is not None and comment.record.on_oom == "requeue"
    if job.may_requeue or not agreed or VERDICTS[end.saw].next_run == NO_RUN or slurm.site().requeues:
        return {}
    return {"Requeue": "1"}


def _write_line(line: Optional[str]) -> None:
    """One line at the end of the job's stderr, which is ours too."""
    if line:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
