"""What prolog and epilog do as root for a shared job: `python -I -m slurm_gpumem.node.hook prolog`.

Both fail open: whatever goes wrong is logged and the exit code is 0, since Slurm drains a node
over anything else. Neither calls Slurm, opens a file of the user's, or waits for long. Root talks to a
user's MPS daemon only under a lock of that user's own, so nobody else waits for it, and only for so long.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import replace
from typing import Callable, List, Mapping, Optional, Sequence

from slurm_gpumem.config.node import NodeConfig, load_node_config, run_dir
from slurm_gpumem.config.paths import site_config_path
from slurm_gpumem.files import LockTimeoutError, locked, read_json, write_json
from slurm_gpumem.formats.comment import parse_end, parse_record
from slurm_gpumem.formats.job_record import UNFENCED, FaultEvent
from slurm_gpumem.formats.live import read_live
from slurm_gpumem.formats.notes import FaultNote, read_fault_note, write_fault_note
from slurm_gpumem.formats.task_file import TaskFile, TaskGpu, write_task_file
from slurm_gpumem.node import jobs, records
from slurm_gpumem.node.gpus import NodeGpu, find_gpus, pick
from slurm_gpumem.node.jobs import NodeJob, RunFolder
from slurm_gpumem.node.log import log
from slurm_gpumem.node.mps import MpsError, MpsService
from slurm_gpumem.node.record_store import RecordStore

_DAEMONS_READY_S = 6.0
"""Nothing is begun with a daemon after this; one that is begun ends before the shell hook's time limit."""
_LOCK_S, _FAULTS_LOCK_S, _DROP_LOCK_S = 0.5, 3.0, 6.0
_RECORDS_LOCK_S = 3.0
_NO_LIMIT_MIB = 1 << 20


def main(argv: Sequence[str]) -> int:
    """Entry point of the shell hooks; always 0."""
    where = run_dir()
    try:
        config = load_node_config(site_config_path())
        for note in config.notes:
            log(where, note)
        action = {"prolog": prolog, "epilog": epilog}[argv[0]]
        action(RunFolder(where), config, os.environ)
    except Exception as error:  # noqa: BLE001 - a hook that fails drains the node
        log(
            where,
            f"{' '.join(argv)} of job {os.environ.get('SLURM_JOB_ID')}: {type(error).__name__}: {error}",
        )
    return 0


def prolog(folder: RunFolder, config: NodeConfig, env: Mapping[str, str]) -> None:
    """Note the job, have its user's MPS daemon running on its GPUs, open its record, wake the sampler."""
    node = env.get("SLURMD_NODENAME", "")
    gpus = pick(find_gpus(config, node), env.get("SLURM_JOB_GPUS", "")[:4096])
    job = job_from(config, env, gpus)
    if job is None:
        return
    folder.make()
    # Before the lock: a reference that comes early keeps a daemon alive, one that comes late loses it.
    jobs.put(folder, job)
    why = _fence(folder, config, job, gpus) if job.mode == "mps" else ""
    if why:
        job = replace(job, mode=UNFENCED, notes=(f"not fenced, no MPS: {why}",))
        jobs.put(folder, job)
    if job.mode != "mps":
        _write_task_file(folder, config, job, gpus)
    for note in job.notes:
        log(folder.root, f"job {job.job_id}: {note}")
    start_sampler(folder, node)
    store, record = RecordStore(folder, config.spool, node), records.open_record(job, node)
    _try_spool(folder, job.job_id, lambda: store.write_open(record, _RECORDS_LOCK_S))


def epilog(folder: RunFolder, config: NodeConfig, env: Mapping[str, str]) -> None:
    """Close the job's record, forget the job, stop its user's MPS daemon if this was the last."""
    job_id = jobs.valid_job_id(env.get("SLURM_JOB_ID", ""))
    job = None if job_id is None else jobs.get(folder, job_id)
    if job is None:
        return
    end = parse_end(env.get("SLURM_JOB_COMMENT", "")[:4096])
    # The task epilog does not know the exit code: what it saw in the log counts only if the run failed.
    status = env.get("SLURM_JOB_EXIT_CODE2", "")
    judged = end is not None and end.run == job.restarts and status != "0:0"
    finish(
        folder,
        config,
        job,
        env.get("SLURMD_NODENAME", ""),
        status,
        end.saw if end is not None and judged else "",
    )


def finish(
    folder: RunFolder, config: NodeConfig, job: NodeJob, node: str, status: str, verdict: str = ""
) -> None:
    """What ends a job's stay: the epilog's work, and the sampler's for an epilog that was killed."""
    record = records.open_record(job, node)._replace(verdict=verdict)
    live = read_live(folder.live)
    seen = live.jobs.get(job.job_id) if live is not None else None
    if seen is not None and seen.restarts == job.restarts:
        record = records.with_measurement(record, seen.measured, seen.notes)
    if job.mode == "mps" and status != "0:0":
        try:
            with daemon_locks(folder, job, _FAULTS_LOCK_S):
                events = faults_at_end(folder, config, job)
        except OSError as error:
            log(folder.root, f"job {job.job_id}: whether its MPS server had faulted is not known: {error}")
            events = []
        for event in events:
            record = records.with_event(record, event)
    store = RecordStore(folder, config.spool, node)
    closed = records.closed_record(record, end=job.now(), status=status)
    _try_spool(folder, job.job_id, lambda: store.close(closed, _RECORDS_LOCK_S))
    try:
        with daemon_locks(folder, job, _DROP_LOCK_S):
            jobs.drop(folder, job.job_id)
            for uuid in job.gpus:
                stop_unneeded(folder, config, uuid, job.uid)
    finally:
        # The spool comes last: it may hang, and nothing else shall wait for it.
        _try_spool(folder, job.job_id, lambda: store.flush(_RECORDS_LOCK_S))


def faults_at_end(folder: RunFolder, config: NodeConfig, job: NodeJob) -> List[FaultEvent]:
    """Had the user's MPS server faulted when this job failed? Then its other clients there failed with it.

    The first of them to end sees the server's own word; it leaves a note for the others, since the
    server recovers when all are gone. The caller holds the daemons' locks.
    """
    found = []
    service = MpsService(folder, config.mps_control)
    for uuid in job.gpus:
        path, now = folder.fault_note(uuid, job.uid), time.time()
        note = read_fault_note(path, now)
        if note is None:
            if not service.faulted(uuid, job.uid):
                continue
            hit = tuple(other.job_id for other in jobs.users_of(folder, uuid, job.uid))
            note = FaultNote(round(now, 1), hit)
            write_fault_note(path, note)
        others = tuple(sorted({*note.jobs} - {job.job_id}))
        found.append(FaultEvent("mps-fault", uuid, note.at, others))
    return found


def stop_unneeded(folder: RunFolder, config: NodeConfig, uuid: str, uid: int) -> None:
    """Stop a user's daemon on a GPU when no job refers to it; the caller holds its lock."""
    if not jobs.users_of(folder, uuid, uid):
        MpsService(folder, config.mps_control).stop(uuid, uid)


def job_from(config: NodeConfig, env: Mapping[str, str], gpus: Sequence[NodeGpu]) -> Optional[NodeJob]:
    """The job of a prolog's environment; None when it has no GPU or the site wants nothing done."""
    job_id, uid = jobs.valid_job_id(env.get("SLURM_JOB_ID", "")), env.get("SLURM_JOB_UID", "")
    modes = {config.mode_for(gpu.name) for gpu in gpus}
    if job_id is None or not uid.isdigit() or not gpus or "off" in modes:
        return None
    restarts = env.get("SLURM_JOB_RESTART_COUNT", "")
    return NodeJob(
        job_id=job_id,
        uid=int(uid),
        user=env.get("SLURM_JOB_USER", "")[:64],
        gpus=tuple(gpu.uuid for gpu in gpus),
        mode="timeslice" if "timeslice" in modes else "mps",
        started=round(time.time(), 3),
        restarts=int(restarts) if restarts.isdigit() else 0,
        cluster=env.get("SLURM_CLUSTER_NAME", "")[:64],
        partition=env.get("SLURM_JOB_PARTITION", "")[:64],
        sluid=jobs.valid_sluid(env.get("SLURM_JOB_SLUID", "")),
        claim=parse_record(env.get("SLURM_JOB_COMMENT", "")[:4096]),
    )


def task_file(folder: RunFolder, config: NodeConfig, job: NodeJob, gpus: Sequence[NodeGpu]) -> TaskFile:
    """What task_prolog.sh reads."""
    return TaskFile(
        mode=job.mode,
        shard_mib=config.shard_mib,
        headroom_mib=config.headroom_mib,
        limits=config.limits,
        limit_key=config.limit_key,
        threads=config.thread_percentage,
        claim_mib=claimed_mib(config, job),
        record=job.claim is not None,
        end_line=config.wants_end_line(job.claimed.tell == "end"),
        gpus=tuple(
            TaskGpu(gpu.number, gpu.uuid, str(folder.pipe(gpu.uuid, job.uid)), gpu.memory_mib or 0)
            for gpu in gpus
        ),
    )


def claimed_mib(config: NodeConfig, job: NodeJob) -> Optional[int]:
    """What the job's record claims to have been given, in whole shards."""
    shards, request = job.claimed.shards, job.claimed.request_mib
    if shards is None and request is not None:
        shards = -(-request // config.shard_mib)
    return None if not shards else config.job_mib(shards)


def start_sampler(folder: RunFolder, node: str) -> None:
    """Start the node's sampler unless one runs; two that start at once sort it out by a lock."""
    from slurm_gpumem.node.service import start_sampler as start

    start(folder, node)


def _fence(folder: RunFolder, config: NodeConfig, job: NodeJob, gpus: Sequence[NodeGpu]) -> str:
    """Have the user's daemons running on the job's GPUs and point its tasks at them; or why that failed."""
    service = MpsService(folder, config.mps_control, tmpfs_mib=config.user_tmpfs_mib)
    if not service.available():
        return f"{config.mps_control} is not there"
    deadline = time.monotonic() + _DAEMONS_READY_S
    try:
        while not all(_serves_others(service, folder, config, job, uuid) for uuid in job.gpus):
            try:
                with daemon_locks(folder, job, min(_LOCK_S, deadline - time.monotonic())):
                    for uuid in job.gpus:
                        if time.monotonic() > deadline:
                            return f"its daemons were not ready within {_DAEMONS_READY_S:g} s"
                        _ensure_daemon(service, folder, config, job, uuid)
                    # Before the next job of the user's has the lock: it sees by this file that ours is here.
                    _write_task_file(folder, config, job, gpus)
                    return ""
            except LockTimeoutError:
                if time.monotonic() > deadline:
                    # A daemon too slow to confirm its default limit is still better than none.
                    if all(
                        _serves_others(service, folder, config, job, uuid, late=True) for uuid in job.gpus
                    ):
                        break
                    raise
        _write_task_file(folder, config, job, gpus)
    except (MpsError, OSError) as error:
        return str(error)
    return ""


def _write_task_file(folder: RunFolder, config: NodeConfig, job: NodeJob, gpus: Sequence[NodeGpu]) -> None:
    write_task_file(folder.task_file(job.job_id), task_file(folder, config, job, gpus), job.uid)


def _ensure_daemon(
    service: MpsService, folder: RunFolder, config: NodeConfig, job: NodeJob, uuid: str
) -> None:
    users = jobs.users_of(folder, uuid, job.uid)
    # A job whose prolog is through may be computing; one that waits for our lock is not yet.
    service.ensure(uuid, job.uid, in_use=_others_are_ready(folder, job, users))
    limit, note = _default_limit(config, users), folder.limit_note(uuid, job.uid)
    # Root's own note, gone with the daemon: many jobs that start at once need not all ask it.
    if limit is not None and read_json(note) != limit and service.set_default_limit(uuid, job.uid, limit):
        with contextlib.suppress(OSError):  # the user has filled the folder: the next job asks again
            write_json(note, limit, mode=0o644)


def _serves_others(
    service: MpsService, folder: RunFolder, config: NodeConfig, job: NodeJob, uuid: str, *, late: bool = False
) -> bool:
    """Whether a daemon with another job of the user's at it will do for this one as it is: no lock needed.

    That job has a task file, and ours has been noted before we look: whoever ends it finds ours then, and
    leaves the daemon running. When it is `late`, a default limit will do that is not known to be too small.
    """
    users = jobs.users_of(folder, uuid, job.uid)
    limit, noted = _default_limit(config, users), read_json(folder.limit_note(uuid, job.uid))
    fits = limit is None or noted == limit or (late and (noted is None or noted > limit))
    return fits and _others_are_ready(folder, job, users) and service.runs(uuid, job.uid)


def _others_are_ready(folder: RunFolder, job: NodeJob, users: Sequence[NodeJob]) -> bool:
    return any(folder.task_file(user.job_id).exists() for user in users if user.job_id != job.job_id)


def _default_limit(config: NodeConfig, users: Sequence[NodeJob]) -> Optional[int]:
    """One daemon serves all of these: its default must not starve the largest of them."""
    claims = [claimed_mib(config, user) for user in users]
    known = [claim for claim in claims if claim is not None]
    if not config.limits or not known:
        return None
    return max(known) if len(known) == len(claims) else _NO_LIMIT_MIB


def daemon_locks(folder: RunFolder, job: NodeJob, timeout_s: float) -> contextlib.ExitStack:
    """All locks of a job's daemons, in one order for all jobs of its user."""
    deadline = time.monotonic() + timeout_s
    stack = contextlib.ExitStack()
    try:
        for uuid in sorted(job.gpus):
            left = max(0.0, deadline - time.monotonic())
            stack.enter_context(locked(folder.daemon_lock(uuid, job.uid), left))
    except BaseException:
        stack.close()
        raise
    return stack


def _try_spool(folder: RunFolder, job_id: int, write: Callable[[], None]) -> None:
    try:
        write()
    except OSError as error:
        log(folder.root, f"record of job {job_id}: {error}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
