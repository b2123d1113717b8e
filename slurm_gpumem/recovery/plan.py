"""Whether a failed job is run again, and with what request: decided from what Slurm says about it now."""

from __future__ import annotations

import time
from typing import Mapping, Optional, Tuple, Union

from slurm_gpumem.config.recovery import RecoveryConfig
from slurm_gpumem.formats.comment import CommentRecord
from slurm_gpumem.formats.decisions import Decision
from slurm_gpumem.formats.verdicts import MORE_MEMORY, NO_RUN, SAME_REQUEST, SLOT, VERDICTS
from slurm_gpumem.recovery.job_comment import JobComment, Refusal
from slurm_gpumem.recovery.ladder import LimitOn, NoStep, next_request
from slurm_gpumem.slurm.config_show import Site
from slurm_gpumem.slurm.gres import held_by, replaced
from slurm_gpumem.slurm.state.nodes import GPU_TYPE_CAN_CHANGE, WHOLE_GPU_BESIDE_SHARDS
from slurm_gpumem.slurm.state.queue import Job
from slurm_gpumem.units import ceil_div

_KILLED = ("0:9", "0:15", "137:0", "143:0")
"""Somebody ended it: whatever its log says, that was not for want of GPU memory."""


def why_not(job: Job, comment: JobComment, config: RecoveryConfig, site: Site) -> Optional[Refusal]:
    """What speaks against another run before any request is looked at; None when nothing does."""
    record, end = comment.record, comment.end
    if record is None or end is None or VERDICTS[end.saw].next_run == NO_RUN:
        return Refusal("nothing in it says that GPU memory ran out")
    if not config.enabled:
        return Refusal("the site does not requeue (recovery.enabled)")
    # A slot's end is no failure: its owner asked for slots, and a pipe may have swallowed the exit code.
    if end.saw != SLOT and job.ended and job.status in ("0:0", *_KILLED):
        return Refusal(f"its exit code is {job.status}")
    if end.saw != SLOT and record.on_oom != "requeue":
        return Refusal("its owner does not want it to be requeued (on-oom)")
    if job.het:
        return Refusal("the parts of a heterogeneous job can only be requeued together")
    if not job.batch:
        return Refusal("Slurm requeues batch jobs only, not those of srun and salloc")
    if not job.may_requeue:
        if site.requeues:
            return Refusal("its owner asked for --no-requeue")
        return Refusal("this site's JobRequeue=0 was not lifted for it")
    return None


def decide(
    job: Job,
    comment: JobComment,
    config: RecoveryConfig,
    site: Site,
    decided: Mapping[int, Decision],
    *,
    units: Mapping[Optional[str], int],
    sizes: Mapping[str, int],
    limit_on: LimitOn,
) -> Union[Decision, Refusal]:
    """What follows a run that failed, if nothing speaks against another one; `decided` are earlier runs."""
    record, end = comment.record, comment.end
    assert record is not None
    assert end is not None
    verdict = VERDICTS[end.saw]
    given = [VERDICTS[one.verdict].next_run for one in decided.values() if one.requeued]
    now = round(time.time(), 3)
    if verdict.next_run == SAME_REQUEST:
        if record.again or SAME_REQUEST in given:
            return Refusal(f"it ended {verdict.ended} before and was run again once")
        return Decision(end.run, now, True, f"it ended {verdict.ended}", verdict.name)
    held = held_by(job.request)
    if held is None:
        return Refusal(f"its request {job.request!r} is not for one part of a GPU")
    need = end.need_mib
    following = next_request(
        config.ladder,
        # Its owner can write what they like into the comment; what we gave is in our own book.
        max(record.retry or 0, given.count(MORE_MEMORY)),
        held,
        units,
        need_units=ceil_div(need, config.shard_mib) if need and held.gres == "shard" else 0,
        gpu_keeps_off_shards=site.version >= WHOLE_GPU_BESIDE_SHARDS,
        limit_on=limit_on,
        sizes=sizes,
        need_mib=need or 0,
        type_can_change=site.version >= GPU_TYPE_CAN_CHANGE,
    )
    if isinstance(following, NoStep):
        return Refusal(following.reason)
    what = "a whole GPU" if following.whole else f"{following.units} {held.gres}s"
    if held.gres == "gpu":
        what = following.gres
    return Decision(
        end.run,
        now,
        True,
        f"{verdict.ended} at {_held(held)}: {what}",
        verdict.name,
        request=replaced(job.request, following.gres),
        shards=following.units,
        was=held.units,
        need_mib=need or record.need_mib,
        whole=following.whole,
    )


def record_of_next(record: CommentRecord, decision: Decision) -> CommentRecord:
    """The job's record from the next run on."""
    run = decision.run + 1
    if decision.verdict == SLOT:
        slots = (record.slots or 0) + 1
        record = record._replace(why=SLOT, run=run, slots=slots, save=decision.save_s)
        smaller = decision.shards is not None
        return record._replace(shards=decision.shards, was=decision.was) if smaller else record
    if VERDICTS[decision.verdict].next_run == SAME_REQUEST:
        return record._replace(again=1, why=decision.verdict, run=run)
    return record._replace(
        shards=decision.shards,
        retry=(record.retry or 0) + 1,
        was=decision.was,
        why=decision.verdict,
        run=run,
        need_mib=decision.need_mib,
        whole="yes" if decision.whole else record.whole,
    )


def _held(held: Tuple[str, Optional[str], int]) -> str:
    if held[0] == "gpu" and held[1]:
        return held[1]
    return f"{held[2]} {held[0]}{'' if held[2] == 1 else 's'}"
