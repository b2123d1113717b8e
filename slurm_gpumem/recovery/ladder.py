"""The recovery ladder: what a job that ran out of GPU memory asks for next.

Steps are "need+25%", "+25%" or "whole-gpu". Where the job stands is read from its own request: one that
has a whole GPU is at the end, whatever its comment says, and every step asks for more than the last.
No step asks for what cannot be had: more than any GPU in reach has, or more than a limit allows.
A job on a MIG instance climbs to the next larger profiles, then to a whole GPU.
"""

from __future__ import annotations

import time
from types import MappingProxyType
from typing import Callable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from slurm_gpumem.config.kinds import Step
from slurm_gpumem.config.recovery import RecoveryConfig
from slurm_gpumem.formats.comment import CommentRecord
from slurm_gpumem.formats.decisions import Decision
from slurm_gpumem.formats.mig_profiles import profile_name
from slurm_gpumem.formats.verdicts import MORE_MEMORY, NO_RUN, SAME_REQUEST, SLOT, VERDICTS
from slurm_gpumem.recovery.job_comment import JobComment, Refusal
from slurm_gpumem.slurm.config_show import Site
from slurm_gpumem.slurm.gres import Held, gres_word, held_by, replaced
from slurm_gpumem.slurm.state.nodes import GPU_TYPE_CAN_CHANGE, WHOLE_GPU_BESIDE_SHARDS
from slurm_gpumem.slurm.state.queue import Job
from slurm_gpumem.units import ceil_div

LimitOn = Callable[[str, Optional[str], int], Optional[str]]
"""The limit that this amount of a gres (name, type, count) would exceed, in words; None if there is none."""


class Next(NamedTuple):
    """What the next run asks for."""

    gres: str
    """The entry for --gres: "shard:a100:40", "gpu:1"."""
    units: int
    """0 for gpu:1."""
    whole: bool


class NoStep(NamedTuple):
    """There is nothing to ask for."""

    reason: str


def no_limit(gres: str, gpu_type: Optional[str], count: int) -> Optional[str]:
    """Everything is allowed."""
    return None


def next_request(
    ladder: Sequence[Step],
    taken: int,
    held: Held,
    units_per_gpu: Mapping[Optional[str], int],
    *,
    need_units: int,
    gpu_keeps_off_shards: bool,
    limit_on: LimitOn = no_limit,
    sizes: Mapping[str, int] = MappingProxyType({}),
    need_mib: int = 0,
    type_can_change: bool = True,
) -> Union[Next, NoStep]:
    """What to ask for after `taken` steps.

    `units_per_gpu` are the types of GPUs in reach. `need_units` is what the failed run is known to have
    needed. `gpu_keeps_off_shards` as `slurm.state.nodes.WHOLE_GPU_BESIDE_SHARDS` says. `sizes` are the MiB of
    all types in reach where MIG instances are among them, and `need_mib` is `need_units` for those;
    `type_can_change` as `slurm.state.nodes.GPU_TYPE_CAN_CHANGE` says.
    """
    if held.gres == "gpu" and taken < len(ladder) and held.gpu_type in sizes and profile_name(held.gpu_type):
        if not type_can_change:
            return NoStep(f"this Slurm cannot change a job's GPU type {held.gpu_type} (23.02 and later can)")
        return _larger(ladder[taken], held, sizes, need_mib, limit_on)
    units_by_type = {
        kind: units for kind, units in units_per_gpu.items() if held.gpu_type in (None, kind) and units > 0
    }
    largest = max(units_by_type.values(), default=0)
    if held.gres == "gpu" or taken >= len(ladder) or (largest and held.units >= largest):
        return NoStep("it ran out of GPU memory at the ladder's last step")
    if largest and need_units > largest:
        return NoStep(
            f"it needs {need_units} {held.gres}s at least; no GPU in its reach has more than {largest}"
        )
    in_the_way: List[str] = []
    for following, entry in _candidates(
        ladder[taken],
        held,
        units_by_type,
        need_units=need_units,
        gpu_keeps_off_shards=gpu_keeps_off_shards,
        whole_type=held.gpu_type or _whole_type(sizes),
    ):
        limit = limit_on(*entry)
        if limit is None:
            return following
        in_the_way.append(limit)
    below = _most_allowed(held, largest, need_units, limit_on)
    return below or NoStep(f"more GPU memory is not allowed: {in_the_way[0]}")


def _candidates(
    step: Step,
    held: Held,
    units_by_type: Mapping[Optional[str], int],
    *,
    need_units: int,
    gpu_keeps_off_shards: bool,
    whole_type: Optional[str],
) -> Iterator[Tuple[Next, Held]]:
    """What the step asks for, then what a whole GPU is called, the best first."""
    largest = max(units_by_type.values(), default=0)
    wanted = _with_margin(step, held.units, need_units)
    if wanted is not None and wanted < largest:
        yield _part(held, wanted), held._replace(units=wanted)
    if gpu_keeps_off_shards or not largest:
        kind = whole_type or _type_for(held, units_by_type)
        yield Next(gres_word("gpu", kind, 1), 0, True), Held("gpu", kind, 1)
    if largest:
        # Without a type it cannot be given one now; the most that any GPU has is a whole one anyway.
        yield _part(held, largest)._replace(whole=True), held._replace(units=largest)


def _larger(
    step: Step, held: Held, sizes: Mapping[str, int], need_mib: int, limit_on: LimitOn
) -> Union[Next, NoStep]:
    """The smallest larger type that the step's margin asks for, else the largest."""
    had = sizes[held.gpu_type or ""]
    above = sorted((mib, kind) for kind, mib in sizes.items() if mib > had)
    if not above or need_mib > above[-1][0]:
        return NoStep(f"no GPU or MIG instance in its reach is larger than {held.gpu_type}, or large enough")
    wanted = _with_margin(step, had, need_mib)
    enough = [kind for mib, kind in above if wanted is not None and mib >= wanted]
    limit = None
    for kind in enough or [above[-1][1]]:
        limit = limit_on("gpu", kind, 1)
        if limit is None:
            return Next(gres_word("gpu", kind, 1), 0, profile_name(kind) is None)
    return NoStep(f"more GPU memory is not allowed: {limit}")


def _whole_type(sizes: Mapping[str, int]) -> Optional[str]:
    """The largest whole GPU: beside MIG instances gpu:1 could be one of them."""
    whole = [kind for kind in sizes if profile_name(kind) is None]
    return max(whole, key=lambda kind: sizes[kind], default=None)


def _with_margin(step: Step, had: int, needed: int) -> Optional[int]:
    """The shards of a step; None for a whole GPU."""
    if step.margin_percent is None:
        return None
    if step.by_need and needed <= had:
        # It was stopped at what it had, so it needs more than that; nobody knows how much more.
        return 2 * had
    return ceil_div(max(had, needed) * (100 + step.margin_percent), 100)


def _most_allowed(held: Held, largest: int, need_units: int, limit_on: LimitOn) -> Optional[Next]:
    """The most shards that the limits leave, if that is more than it had and enough for what is known."""
    for units in range(largest - 1, max(held.units, need_units - 1), -1):
        if limit_on(held.gres, held.gpu_type, units) is None:
            return _part(held, units)
    return None


def _part(held: Held, units: int) -> Next:
    return Next(gres_word(held.gres, held.gpu_type, units), units, False)


def _type_for(held: Held, units_by_type: Mapping[Optional[str], int]) -> Optional[str]:
    """The type to name for a whole GPU: the user's, or the largest where a smaller one gives no more."""
    if held.gpu_type is not None or all(units > held.units for units in units_by_type.values()):
        return held.gpu_type
    return max(units_by_type, key=lambda kind: units_by_type[kind])


# Whether a failed job is run again, and with what request: decided from what Slurm says about it now.

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
