"""What the task epilog does, as the job's user, at the end of one of our batch scripts.

`python -I -m slurm_gpumem.recovery.task_epilog`: it reads the end of the job's own log, checks it against
what was measured, notes the verdict in the job's comment and writes a line at the end of the job's stderr. It
does not know the exit code; whether the job failed at all is the controller's to say. Nothing it does fails
the job.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from math import ceil
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from slurm_gpumem.config.node import NodeConfig, load_node_config, run_dir
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
from slurm_gpumem.formats.notes import read_fault_note
from slurm_gpumem.formats.task_file import TaskGpu, read_task_gpus
from slurm_gpumem.formats.verdicts import NEIGHBOUR, NO_RUN, OOM, SAVED, SLOT, VERDICTS
from slurm_gpumem.node.gpus import is_instance
from slurm_gpumem.node.jobs import SHARED_UID, RunFolder
from slurm_gpumem.node.mps.daemons import MpsService
from slurm_gpumem.node.records import NEAR
from slurm_gpumem.recovery.job_comment import (
    RUN_ENDED,
    JobComment,
    Refusal,
    end_message,
    parse_comment,
    with_end,
)
from slurm_gpumem.recovery.ladder import why_not
from slurm_gpumem.recovery.log_verdict import (
    LogVerdict,
    is_own_stderr,
    judge_log,
    read_own_stderr,
    read_tail,
    time_limit,
)
from slurm_gpumem.recovery.patterns import Kind
from slurm_gpumem.recovery.slots import next_slot, state_of_run
from slurm_gpumem.slurm.client import Commands
from slurm_gpumem.slurm.node_names import expand_names
from slurm_gpumem.slurm.state.controller import Controller
from slurm_gpumem.slurm.state.nodes import GPU_TYPE_CAN_CHANGE
from slurm_gpumem.slurm.state.queue import Job, job_name

# The text of a log checked against the measurement: which of it may be believed.


_FAR = 0.5
"""Less than this part of the limit, including what was asked for last: then memory was not what it lacked."""
_NOTHING = 0.1
"""The same where the text does not say what was asked for."""
_ENOUGH_SAMPLES = 5
"""With fewer samples the peak may have been missed."""


class Measured(NamedTuple):
    """The node's measurement of a run, as far as it is known when the run ends."""

    peak_mib: Optional[float] = None
    limit_mib: Optional[float] = None
    """What its share allows, or the GPU has."""
    samples: int = 0
    fresh: bool = False
    """Whether it was written just now: an older one can say that much was used, not that little was."""
    overran: bool = False
    """Whether the node ended its processes, because it took more than its share while sharing."""
    crowded: bool = False
    """Whether another job took more than its share beside it."""

    @property
    def part(self) -> Optional[float]:
        """The peak as a part of the limit, when both are known."""
        if self.peak_mib is None or not self.limit_mib:
            return None
        return self.peak_mib / self.limit_mib

    @property
    def certain(self) -> bool:
        """Whether a low peak means that little was used."""
        return self.part is not None and self.fresh and self.samples >= _ENOUGH_SAMPLES


def verdict_on(log: LogVerdict, measured: Measured, hit_too: Sequence[int] = ()) -> Optional[str]:
    """Why a run that fails with this log ended: the name of a verdict, None for a reason that has none.

    `hit_too` are the user's other jobs that the same GPU fault has hit.
    """
    if measured.overran:
        return OOM
    if log.kind is Kind.FAULT:
        return NEIGHBOUR if hit_too else None
    if log.kind is Kind.MAYBE:
        near = measured.part is not None and measured.part >= NEAR
        return OOM if near else None
    if log.kind is Kind.OOM and measured.crowded and not _was_at_its_limit(log, measured):
        return NEIGHBOUR
    if log.kind is Kind.OOM:
        return OOM if _may_have_run_out(log, measured) else None
    return log.kind.value if log.kind and log.kind.value in VERDICTS else None


def _was_at_its_limit(log: LogVerdict, measured: Measured) -> bool:
    """Whether its own share was too small, whoever took what beside it."""
    if log.need_mib is None:
        return measured.part is not None and measured.part >= NEAR
    return measured.limit_mib is not None and max(measured.peak_mib or 0, log.need_mib) > measured.limit_mib


def _may_have_run_out(log: LogVerdict, measured: Measured) -> bool:
    """Whether the measurement allows that memory ran out: anybody can print such a line."""
    if not measured.certain or measured.part is None or measured.limit_mib is None:
        return True
    if log.need_mib is None:
        return measured.part >= _NOTHING
    return (measured.peak_mib or 0) + log.need_mib >= _FAR * measured.limit_mib


# Was a GPU fault perhaps a neighbour's? Asked by the task epilog, as the user, while the job is still here.
#
# MPS hands one client's fatal fault to all clients of that server and does not say whose it was. So a fault
# counts as a neighbour's when there was one: another job at the same server that it hit too. That is the
# sampler's finding, which root leaves in a note. A user's own daemon can be asked too.

_PAUSE_S = 0.1


def jobs_hit_too(
    folder: RunFolder, config: NodeConfig, job_id: int, uid: int, *, wait_s: float = 0.0
) -> List[int]:
    """The other jobs that a fault of its MPS server has hit too; none when there was no fault.

    The sampler needs a look or two to see it: it is waited for.
    """
    deadline = time.monotonic() + wait_s
    while True:
        others = {
            other
            for gpu in read_task_gpus(folder.task_file(job_id))
            for other in _hit_on(folder, config, gpu, uid)
        }
        if others - {job_id} or time.monotonic() >= deadline:
            return sorted(others - {job_id})
        time.sleep(_PAUSE_S)


def _hit_on(folder: RunFolder, config: NodeConfig, gpu: TaskGpu, uid: int) -> List[int]:
    shared = gpu.pipe == str(folder.pipe(gpu.uuid, SHARED_UID))
    note = read_fault_note(folder.fault_note(gpu.uuid, SHARED_UID if shared else uid), time.time())
    if note is not None:
        return list(note.jobs)
    if not shared and MpsService(folder, config.mps_control).faulted(gpu.uuid, uid):
        return list(_at_daemon(folder, gpu.pipe))
    return []


def _at_daemon(folder: RunFolder, pipe: str) -> Iterator[int]:
    """The jobs that the task prolog pointed at an MPS daemon, by the files that it reads too."""
    try:
        names = os.listdir(folder.jobs)
    except OSError:
        return
    for name in names:
        number, _, kind = name.partition(".")
        is_task = kind == "task" and number.isdigit()
        if is_task and any(gpu.pipe == pipe for gpu in read_task_gpus(folder.jobs / name)):
            yield int(number)


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
