"""What limits a shared job: the MPS daemons that serve it, their memory limits, what its tasks are told.

Root talks to a daemon only under that daemon's lock. A user's own daemon may hang at its owner's wish: nobody
else waits for its lock, and its own user's jobs only for so long.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Optional, Sequence

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.files import LockTimeoutError, allow_readers, locked, read_json, write_json
from slurm_gpumem.formats.comment import is_busy
from slurm_gpumem.formats.job_record import MIG, MPS_SHARED, TIMESLICE
from slurm_gpumem.formats.live import LiveJob, read_live_jobs
from slurm_gpumem.formats.task_file import TaskFile, TaskGpu, write_task_file
from slurm_gpumem.node import jobs
from slurm_gpumem.node.gpus import NodeGpu
from slurm_gpumem.node.jobs import SHARED_UID, NodeJob, RunFolder
from slurm_gpumem.node.mps.daemons import MULTI_USER, MpsError, MpsService
from slurm_gpumem.node.mps.mps_blocklist import why_kept_apart
from slurm_gpumem.node.sampler.slots import slot_of

_DAEMONS_READY_S = 6.0
"""Nothing is begun with a daemon after this; one that is begun ends before the shell hook's time limit."""
_LOCK_S = 0.5
USER_TMPFS_MIB = 16
"""The file system for the files of a user's daemon on one GPU, which that user could fill."""
_NO_LIMIT_MIB = 1 << 20


def off_the_shared_server(folder: RunFolder, config: NodeConfig, job: NodeJob) -> NodeJob:
    """The job as this node serves it: in time slices where the server that users share is not for it.

    Not at a server of its user's own, which that user could stop. What faults without MPS ends nothing else.
    """
    service = MpsService(folder, config.mps_control)
    if job.mode != MPS_SHARED or not service.available():
        return job
    why = why_kept_apart(folder, job)
    if not why:
        if service.can_share():
            return job
        why = f"{config.mps_control} has no {MULTI_USER}"
    return replace(job, mode=TIMESLICE, notes=(*job.notes, f"{why}: time slices, without MPS"))


def limit(folder: RunFolder, config: NodeConfig, job: NodeJob, gpus: Sequence[NodeGpu]) -> str:
    """Have the daemons that serve it running on the job's GPUs, point its tasks there; or why that failed."""
    service = MpsService(folder, config.mps_control, tmpfs_mib=USER_TMPFS_MIB)
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
                        _open_door(folder, job, uuid)
                    # Before the next job at that daemon has the lock: it sees by this file that ours is here.
                    tell_tasks(folder, config, job, gpus)
                    return ""
            except LockTimeoutError:
                if time.monotonic() > deadline:
                    # A daemon too slow to confirm its default limit is still better than none.
                    if all(
                        _serves_others(service, folder, config, job, uuid, late=True) for uuid in job.gpus
                    ):
                        break
                    raise
        for uuid in job.gpus:
            _open_door(folder, job, uuid)
        tell_tasks(folder, config, job, gpus)
    except (MpsError, OSError) as error:
        return str(error)
    return ""


def tell_tasks(folder: RunFolder, config: NodeConfig, job: NodeJob, gpus: Sequence[NodeGpu]) -> None:
    """Write the job's task file."""
    write_task_file(folder.task_file(job.job_id), task_file(folder, config, job, gpus), job.uid)


def _ensure_daemon(
    service: MpsService, folder: RunFolder, config: NodeConfig, job: NodeJob, uuid: str
) -> None:
    users = jobs.users_of(folder, uuid, job.daemon_uid)
    # A job whose prolog is through may be computing; one that waits for our lock is not yet.
    service.ensure(uuid, job.daemon_uid, in_use=_others_are_ready(folder, job, users))
    _set_limit(service, folder, config, uuid, job.daemon_uid)


def settle_limit(folder: RunFolder, config: NodeConfig, job: NodeJob) -> None:
    """Set the default limits again, once Slurm has said what the job was given; OSError if that is not now.

    At a server that users share, what a comment claims must not raise the limit of everybody for long.
    """
    service = MpsService(folder, config.mps_control)
    with daemon_locks(folder, job, 0.0):
        for uuid in job.gpus:
            _set_limit(service, folder, config, uuid, job.daemon_uid)


def _set_limit(service: MpsService, folder: RunFolder, config: NodeConfig, uuid: str, uid: int) -> None:
    limit = _default_limit(folder, config, jobs.users_of(folder, uuid, uid))
    note = folder.limit_note(uuid, uid)
    # Root's own note, gone with the daemon: many jobs that start at once need not all ask it.
    if limit is None or read_json(note) == limit:
        return
    if service.set_default_limit(uuid, uid, limit):
        with contextlib.suppress(OSError):  # the user has filled the folder: the next job asks again
            write_json(note, limit, mode=0o644)


def _serves_others(
    service: MpsService, folder: RunFolder, config: NodeConfig, job: NodeJob, uuid: str, *, late: bool = False
) -> bool:
    """Whether a daemon with another job at it will do for this one as it is: no lock needed.

    That job has a task file, and ours has been noted before we look: whoever ends it finds ours then, and
    leaves the daemon running. When it is `late`, a default limit will do that is not known to be too small.
    """
    users = jobs.users_of(folder, uuid, job.daemon_uid)
    limit, noted = _default_limit(folder, config, users), read_json(folder.limit_note(uuid, job.daemon_uid))
    fits = limit is None or noted == limit or (late and (noted is None or noted > limit))
    return fits and _others_are_ready(folder, job, users) and service.runs(uuid, job.daemon_uid)


def _others_are_ready(folder: RunFolder, job: NodeJob, users: Sequence[NodeJob]) -> bool:
    return any(folder.task_file(user.job_id).exists() for user in users if user.job_id != job.job_id)


def _default_limit(folder: RunFolder, config: NodeConfig, users: Sequence[NodeJob]) -> Optional[int]:
    """One daemon serves all of these: its default must not starve the largest of them."""
    seen = read_live_jobs(folder.live, [user.job_id for user in users])
    claims = [_given_mib(user, seen.get(user.job_id)) or claimed_mib(config, user) for user in users]
    known = [claim for claim in claims if claim is not None]
    if not known:
        return None
    return max(known) if len(known) == len(claims) else _NO_LIMIT_MIB


def _given_mib(job: NodeJob, seen: Optional[LiveJob]) -> Optional[int]:
    """What Slurm gave the job, once the sampler has asked it."""
    if seen is None or seen.restarts != job.restarts or not seen.measured.shards_verified:
        return None
    return seen.measured.limit_mib


def daemon_locks(folder: RunFolder, job: NodeJob, timeout_s: float) -> contextlib.ExitStack:
    """All locks of a job's daemons, in one order for all jobs that they serve."""
    deadline = time.monotonic() + timeout_s
    stack = contextlib.ExitStack()
    try:
        for uuid in sorted(job.gpus):
            left = max(0.0, deadline - time.monotonic())
            stack.enter_context(locked(folder.daemon_lock(uuid, job.daemon_uid), left))
    except BaseException:
        stack.close()
        raise
    return stack


def _open_door(folder: RunFolder, job: NodeJob, uuid: str) -> None:
    if job.daemon_uid == SHARED_UID:
        set_door(folder, uuid)


def set_door(folder: RunFolder, uuid: str) -> None:
    """Let the users in whose jobs the shared daemon on that GPU serves, and nobody else.

    Whoever can reach its socket can keep others' clients from connecting, by connecting without end.
    """
    with locked(folder.door_lock(uuid), _LOCK_S):
        home = folder.pipe(uuid, SHARED_UID).parent
        users = {job.uid for job in jobs.users_of(folder, uuid, SHARED_UID)}
        try:
            allow_readers(home, users, folder=True)
        except FileNotFoundError:
            return
        except OSError:
            # No access lists on this file system: all users of the node may come.
            home.chmod(0o755)


def release(folder: RunFolder, config: NodeConfig, job: NodeJob, timeout_s: float) -> None:
    """After a job has gone: stop the daemons that no other job refers to; OSError if that is not now.

    It takes no lock where another job is at the daemon. Of two that leave at once, the later finds nobody;
    one that comes has noted itself before it looks, and is found.
    """
    if job.mode in (TIMESLICE, MIG):
        return
    if all(jobs.users_of(folder, uuid, job.daemon_uid) for uuid in job.gpus):
        for uuid in job.gpus:
            _open_door(folder, job, uuid)
        return
    with daemon_locks(folder, job, timeout_s):
        for uuid in job.gpus:
            stop_unneeded(folder, config, uuid, job.daemon_uid)


def stop_unneeded(folder: RunFolder, config: NodeConfig, uuid: str, uid: int) -> None:
    """Stop that user's daemon on a GPU when no job refers to it; the caller holds its lock."""
    if not jobs.users_of(folder, uuid, uid):
        MpsService(folder, config.mps_control).stop(uuid, uid)
    elif uid == SHARED_UID:
        set_door(folder, uuid)


def task_file(folder: RunFolder, config: NodeConfig, job: NodeJob, gpus: Sequence[NodeGpu]) -> TaskFile:
    """What task_prolog.sh reads."""
    return TaskFile(
        mode=job.mode,
        shard_mib=config.shard_mib,
        headroom_mib=config.headroom_mib,
        claim_mib=claimed_mib(config, job),
        record=job.claim is not None,
        one_log=job.one_log,
        low_priority=job.mode == MPS_SHARED and is_busy(job.claimed.sm),
        slot=slot_of(job),
        run=job.restarts,
        gpus=tuple(
            TaskGpu(gpu.listed, gpu.uuid, str(folder.pipe(gpu.uuid, job.daemon_uid)), gpu.memory_mib or 0)
            for gpu in gpus
        ),
    )


def claimed_mib(config: NodeConfig, job: NodeJob) -> Optional[int]:
    """What the job's record claims to have been given, in whole shards; None on a MIG instance."""
    if job.mode == MIG:
        return None
    shards, request = job.claimed.shards, job.claimed.request_mib
    if shards is None and request is not None:
        shards = -(-request // config.shard_mib)
    return None if not shards else config.job_mib(shards)
