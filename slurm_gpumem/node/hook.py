"""What prolog and epilog do as root for a shared job.

Mostly the sampler does it for them (hook_server.py); where none runs, `python -I -m slurm_gpumem.node.hook
prolog` does, and starts one. Both fail open: whatever goes wrong is logged and the exit code is 0, since
Slurm drains a node over anything else. Neither calls Slurm, opens a file of the user's, or waits for long.
Root talks to a user's MPS daemon only under a lock of that user's own, so nobody else waits for it, and only
for so long.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Callable, List, Mapping, Optional, Sequence

from slurm_gpumem.config.node import NodeConfig, load_node_config, run_dir
from slurm_gpumem.config.paths import site_config_path
from slurm_gpumem.files import remove
from slurm_gpumem.formats.comment import CommentRecord, parse_end, parse_record
from slurm_gpumem.formats.job_record import (
    MIG,
    MPS,
    MPS_SHARED,
    TIMESLICE,
    WITHOUT_MPS,
    FaultEvent,
    JobRecord,
)
from slurm_gpumem.formats.live import read_live_jobs
from slurm_gpumem.formats.notes import FaultNote, read_fault_note, write_fault_note
from slurm_gpumem.formats.verdicts import CHECKPOINTED
from slurm_gpumem.node import jobs, records
from slurm_gpumem.node.gpus import NodeGpu, find_gpus, pick
from slurm_gpumem.node.hooks.inbox import Request, forget, late_prolog
from slurm_gpumem.node.jobs import NodeJob, RunFolder
from slurm_gpumem.node.log import log
from slurm_gpumem.node.mps import mps_limits
from slurm_gpumem.node.mps.daemons import MpsService
from slurm_gpumem.node.records import RecordStore

_FAULTS_LOCK_S, _DROP_LOCK_S = 3.0, 6.0
_RECORDS_LOCK_S = 3.0


def main(argv: Sequence[str]) -> int:
    """Entry point of the shell hooks; always 0."""
    where = run_dir()
    try:
        config = load_node_config(site_config_path())
        for note in config.notes:
            log(where, note)
        announced = True
        try:
            if argv[0] == "epilog":
                announced = epilog(RunFolder(where), config, os.environ)
            else:
                prolog(RunFolder(where), config, os.environ)
        finally:
            # The spool comes last: it may hang, and nothing else shall wait for it.
            if not announced:
                record_unannounced(RunFolder(where), config, os.environ, _asked_at(os.environ))
            to_spool(RunFolder(where), config, os.environ)
        if argv[0] == "epilog" and os.path.isdir(RunFolder(where).locks):  # else no job was noted
            # Where none runs any more, somebody has to ask Slurm how this run ended.
            start_sampler(RunFolder(where), os.environ.get("SLURMD_NODENAME", ""))
    except Exception as error:  # noqa: BLE001 - a hook that fails drains the node
        log(
            where,
            f"{' '.join(argv)} of job {os.environ.get('SLURM_JOB_ID')}: {type(error).__name__}: {error}",
        )
    return 0


def prolog(folder: RunFolder, config: NodeConfig, env: Mapping[str, str]) -> None:
    """Note the job, have a sampler and its user's MPS daemon on its GPUs running."""
    node, gpus = env.get("SLURMD_NODENAME", ""), _gpus(config, env)
    job = job_from(config, env, gpus)
    if job is None:
        if not gpus and config.mps_for(env.get("SLURM_JOB_PARTITION", "")[:64]) != "off":
            job_id, named = env.get("SLURM_JOB_ID"), env.get("SLURM_JOB_GPUS", "")[:64]
            log(folder.root, f"job {job_id} is neither limited nor recorded: no GPU is known here as {named}")
        return
    try:
        folder.make()
        _finish_earlier_run(folder, config, jobs.get(folder, job.job_id), job, node)
        job = mps_limits.off_the_shared_server(folder, config, job)
        # Before the lock: a reference that comes early keeps a daemon alive, one that comes late loses it.
        jobs.put(folder, job)
    except OSError as error:
        job = _without_mps(job, f"it could not be noted: {error}")
        log(folder.root, f"job {job.job_id}: {job.notes[-1]}")
        # Its epilog closes this one: nothing else knows when it began.
        record, store = records.open_record(job, node), RecordStore(folder, config.spool, node)
        _try_spool(folder, job.job_id, lambda: store.write_open(record, _RECORDS_LOCK_S))
        return
    # At once: the prologs that come after this one wait for it.
    start_sampler(folder, node)
    why = mps_limits.limit(folder, config, job, gpus) if job.uses_mps else ""
    if why:
        job = replace(job, mode=WITHOUT_MPS, notes=(*job.notes, f"not limited, no MPS: {why}"))
        jobs.put(folder, job)
    if not job.uses_mps:
        mps_limits.tell_tasks(folder, config, job, gpus)
    for note in job.notes:
        log(folder.root, f"job {job.job_id}: {note}")


def note_late(folder: RunFolder, config: NodeConfig, request: Request) -> Optional[NodeJob]:
    """Note a job whose prolog gave up; its tasks were told when to save and no more, so it is not limited."""
    job = job_from(config, request.env, _gpus(config, request.env))
    if job is None:
        return None
    folder.make()
    before = jobs.get(folder, job.job_id)
    if before is not None and before.restarts >= job.restarts:
        return before
    # In whole seconds, as the shell counts a slot from here.
    passed = job.started - int(request.at)
    job = replace(job, started=float(int(request.at)), booted_s=job.booted_s - passed)
    job = _without_mps(job, "its prolog gave up before it was served")
    # Noted first: what the shell has told its tasks stays.
    jobs.put(folder, job)
    _finish_earlier_run(folder, config, before, job, request.env.get("SLURMD_NODENAME", ""))
    log(folder.root, f"job {job.job_id}: {job.notes[-1]}")
    return job


def epilog(
    folder: RunFolder, config: NodeConfig, env: Mapping[str, str], late_at: Optional[float] = None
) -> bool:
    """Close the run's record in /run, forget the job, stop its user's MPS daemon if this was the last.

    False when no prolog has announced the run. `late_at` is when an epilog that gave up was run: the job's
    next run may be here since.
    """
    job_id = jobs.valid_job_id(env.get("SLURM_JOB_ID", ""))
    if job_id is None:
        return True
    job = jobs.get(folder, job_id)
    gave_up = late_prolog(folder.inbox, job_id) if job is None else None
    if gave_up is not None:
        job = note_late(folder, config, gave_up)
        forget(gave_up.file)
    if job is None:
        if late_at is None:
            with contextlib.suppress(OSError):  # read-only: the run's record comes first
                remove(folder.task_file(job_id))  # of a prolog that gave up
        return False
    if late_at is not None and job.started > late_at:
        return True  # the prolog of this later run has closed the record of the run before
    finish(folder, config, job, env.get("SLURMD_NODENAME", ""), env, late_at)
    return True


def finish(
    folder: RunFolder,
    config: NodeConfig,
    job: NodeJob,
    node: str,
    env: Optional[Mapping[str, str]] = None,
    at: Optional[float] = None,
) -> None:
    """What ends a run's stay: an epilog's work, with its variables, or the sampler's in place of one."""
    record = _ended_record(folder, config, job, records.open_record(job, node), env or {})
    if at is not None:
        record = record._replace(end=round(at, 3))
    store = RecordStore(folder, config.spool, node)
    _try_spool(folder, job.job_id, lambda: store.close(record, _RECORDS_LOCK_S))
    here = jobs.get(folder, job.job_id)
    if here is None or here.restarts == job.restarts:  # its next run stays
        jobs.drop(folder, job.job_id, job.restarts)
    mps_limits.release(folder, config, job, _DROP_LOCK_S)


def record_unannounced(folder: RunFolder, config: NodeConfig, env: Mapping[str, str], at: float) -> None:
    """Record a run that ended here, by its epilog at that time, and that nobody has noted.

    slurmd leaves out the Prolog of a requeued job that is back on its node while the credential of its last
    run is still known there. Or the run folder was removed, or nothing could be written there.
    """
    node, job = env.get("SLURMD_NODENAME", ""), job_from(config, env, _gpus(config, env))
    if job is None:
        return
    at, store = round(at, 3), RecordStore(folder, config.spool, node)
    # A run that Slurm ends in order to requeue it is counted before its epilog runs.
    last, before = (store.end_of(job.job_id, run) for run in (job.restarts, job.restarts - 1))
    if last is not None or (before is not None and before >= at):
        return  # this epilog was killed when it had done its work, and is run again
    runs = (store.opened(job.job_id, run) for run in (job.restarts, job.restarts - 1))
    opened = next((run for run in runs if run is not None and run.uid == job.uid and run.start <= at), None)
    if opened is not None:
        lost = f"{folder.root} had lost this run when it ended: what was measured last is missing"
        opened = opened._replace(notes=(*opened.notes, lost))
        job = replace(job, restarts=opened.restarts, mode=WITHOUT_MPS)  # there is no server to ask about it
    else:
        run = job.restarts - 1 if job.restarts and before is None else job.restarts
        begun = env.get("SLURM_JOB_START_TIME", "")
        job = replace(job, restarts=run, started=float(begun) if begun.isdigit() else at)
        why = "Slurm ran no Prolog for this run" + ("" if begun else ": its start is not known")
        job = _without_mps(job, why)
        opened = records.open_record(job, node)
    log(folder.root, f"job {job.job_id}: {opened.notes[-1]}")
    record = _ended_record(folder, config, job, opened, env)._replace(end=max(at, opened.start))
    _try_spool(folder, job.job_id, lambda: store.close(record, _RECORDS_LOCK_S))


def _asked_at(env: Mapping[str, str]) -> float:
    """When the hook that has started us began; it may have started another Python before."""
    request = Path(env.get("GPUMEM_REQUEST", ""))
    for path in (request, request.with_name(request.name + ".late")) if request.name else ():
        with contextlib.suppress(OSError):
            return os.stat(path).st_mtime
    return time.time()


def _ended_record(
    folder: RunFolder, config: NodeConfig, job: NodeJob, record: JobRecord, env: Mapping[str, str]
) -> JobRecord:
    comment, status = env.get("SLURM_JOB_COMMENT", "")[:4096], env.get("SLURM_JOB_EXIT_CODE2", "")
    end = parse_end(comment)
    # The task epilog does not know the exit code: what it saw in the log counts only if the run failed.
    if end is not None and end.run == job.restarts and (status != "0:0" or end.saw in CHECKPOINTED):
        record = record._replace(verdict=end.saw)
    seen = read_live_jobs(folder.live, [job.job_id]).get(job.job_id)
    if seen is not None and seen.restarts == job.restarts:
        record = records.with_measurement(record, seen.measured, seen.notes)
    if job.uses_mps and status != "0:0":
        try:
            with mps_limits.daemon_locks(folder, job, _FAULTS_LOCK_S):
                events = faults_at_end(folder, config, job)
        except OSError as error:
            log(folder.root, f"job {job.job_id}: whether its MPS server had faulted is not known: {error}")
            events = []
        for event in events:
            record = records.with_event(record, event)
    return records.closed_record(record, end=job.now(), status=status)


def _finish_earlier_run(
    folder: RunFolder, config: NodeConfig, before: Optional[NodeJob], job: NodeJob, node: str
) -> None:
    """Nobody served the epilog of the job's run before: its file must not be taken for this run's."""
    if before is not None and before.restarts != job.restarts:
        note = "its epilog was not served: closed when the job's next run began"
        finish(folder, config, replace(before, notes=(*before.notes, note)), node)


def _without_mps(job: NodeJob, why: str) -> NodeJob:
    """The job, whose tasks were told nothing."""
    mode, note = (WITHOUT_MPS, f"not limited: {why}") if job.uses_mps else (job.mode, why)
    return replace(job, mode=mode, notes=(*job.notes, note))


def to_spool(folder: RunFolder, config: NodeConfig, env: Mapping[str, str]) -> None:
    """A hook's last part: bring closed records to the spool, and open that of a job that is here."""
    node, job_id = env.get("SLURMD_NODENAME", ""), jobs.valid_job_id(env.get("SLURM_JOB_ID", ""))
    if job_id is None:
        return
    store = RecordStore(folder, config.spool, node)
    _try_spool(folder, job_id, lambda: store.flush(_RECORDS_LOCK_S))
    job = jobs.get(folder, job_id)
    if job is not None:
        record = records.open_record(job, node)
        _try_spool(folder, job_id, lambda: store.write_open(record, _RECORDS_LOCK_S))


def faults_at_end(folder: RunFolder, config: NodeConfig, job: NodeJob) -> List[FaultEvent]:
    """Had the user's MPS server faulted when this job failed? Then its other clients there failed with it.

    The first of them to end sees the server's own word; it leaves a note for the others, since the
    server recovers when all are gone. The caller holds the daemons' locks.
    """
    found = []
    service = MpsService(folder, config.mps_control)
    for uuid in job.gpus:
        path, now = folder.fault_note(uuid, job.daemon_uid), time.time()
        note = read_fault_note(path, now)
        if note is None:
            if not service.faulted(uuid, job.daemon_uid):
                continue
            hit = tuple(other.job_id for other in jobs.users_of(folder, uuid, job.daemon_uid))
            note = FaultNote(round(now, 1), hit)
            write_fault_note(path, note)
        others = tuple(sorted({*note.jobs} - {job.job_id}))
        found.append(FaultEvent("mps-fault", uuid, note.at, others))
    return found


def job_from(config: NodeConfig, env: Mapping[str, str], gpus: Sequence[NodeGpu]) -> Optional[NodeJob]:
    """The job of a prolog's environment; None when it has no GPU or the site wants nothing done."""
    job_id, uid = jobs.valid_job_id(env.get("SLURM_JOB_ID", "")), env.get("SLURM_JOB_UID", "")
    partition = env.get("SLURM_JOB_PARTITION", "")[:64]
    mode = config.mps_for(partition)
    if job_id is None or not uid.isdigit() or not gpus or mode == "off":
        return None
    restarts = env.get("SLURM_JOB_RESTART_COUNT", "")
    claim = parse_record(env.get("SLURM_JOB_COMMENT", "")[:4096])
    return NodeJob(
        job_id=job_id,
        uid=int(uid),
        user=env.get("SLURM_JOB_USER", "")[:64],
        gpus=tuple(gpu.uuid for gpu in gpus),
        mode=_mode(mode, gpus, claim),
        started=round(time.time(), 3),
        restarts=int(restarts) if restarts.isdigit() else 0,
        cluster=env.get("SLURM_CLUSTER_NAME", "")[:64],
        partition=partition,
        sluid=jobs.valid_sluid(env.get("SLURM_JOB_SLUID", "")),
        claim=claim,
        one_log=env.get("ONE_LOG") == "yes",
    )


def _gpus(config: NodeConfig, env: Mapping[str, str]) -> Sequence[NodeGpu]:
    """The job's GPUs."""
    node = env.get("SLURMD_NODENAME", "")
    return pick(_in_slurms_order(find_gpus(config, node), node, env), env)


def _in_slurms_order(gpus: Sequence[NodeGpu], node: str, env: Mapping[str, str]) -> Sequence[NodeGpu]:
    # Stand-ins are counted by their device files. Only nodes with instances need Slurm's files.
    if not any(gpu.parent for gpu in gpus):
        return gpus
    from slurm_gpumem.node.gres_order import in_slurms_order

    return in_slurms_order(gpus, node, env)


def _mode(mps: str, gpus: Sequence[NodeGpu], claim: Optional[CommentRecord]) -> str:
    # Nobody is beside a job on an instance, and none of its neighbours can take its memory. Only a site that
    # divides instances into shards has something to limit there.
    if any(gpu.instance for gpu in gpus) and not (claim and claim.shards):
        return MIG
    # Without a record they are whole ones rather than shards of several.
    if len(gpus) > 1 and claim is None:
        return TIMESLICE
    return {"shared": MPS_SHARED, "timeslice": TIMESLICE}.get(mps, MPS)


def start_sampler(folder: RunFolder, node: str) -> None:
    """Start the node's sampler unless one runs; two that start at once sort it out by a lock."""
    from slurm_gpumem.node.hooks.service import start_sampler as start

    start(folder, node)


def _try_spool(folder: RunFolder, job_id: int, write: Callable[[], None]) -> None:
    try:
        write()
    except OSError as error:
        log(folder.root, f"record of job {job_id}: {error}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
