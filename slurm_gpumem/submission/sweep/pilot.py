"""At submission: an array of which nothing is known starts with one task, on a whole GPU.

Slurm itself holds the others back, by the array's own limit on tasks at once: what we have to remember stands
in the job, a task that is cancelled or requeued passes its place to the next one, and nobody waits forever.
"""

from __future__ import annotations

from typing import Optional, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.formats.comment import CommentRecord, append_record
from slurm_gpumem.slurm.state.queue import array_tasks
from slurm_gpumem.slurm.submit.sbatch import SBATCH
from slurm_gpumem.submission.candidate_gpus import CandidateGpus
from slurm_gpumem.submission.needs import Needs
from slurm_gpumem.submission.plan import Plan
from slurm_gpumem.submission.share.host import host_share, named_cpus, names_cpus
from slurm_gpumem.submission.share.request import whole_gpu
from slurm_gpumem.submission.submission import Submission

ONE_FIRST = "one task is measured first, the others then share by what it took"
_ROOM = 300
"""Bytes that our record takes up in a comment in the end, with what recovery notes there."""
CPUS, MEMORY = "cpus", "mem"
"""What of the host a task has not asked for itself, and so gets in proportion to its share."""


def with_pilot(plan: Plan, candidates: CandidateGpus, needs: Needs) -> Plan:
    """The plan, with one task before the others where that is of use."""
    asked = plan.asked
    at_once = tasks_at_once(asked)
    kinds = [kind for kind in candidates.kinds if kind.units]
    if at_once is None or not kinds or asked.config.sharing.gres != "shard" or asked.observed:
        return plan
    written = asked.options.get("comment") or ""
    if append_record(written, "-" * _ROOM) is None or "\n" in written:
        return plan  # without the record nobody would let the others go
    if not candidates.gpu_keeps_off_shards and len({(kind.gpu_type, kind.units) for kind in kinds}) > 1:
        return plan  # Slurm before 23.02.6 changes neither gpu:1 to shards nor one type to another
    request = whole_gpu(
        kinds,
        needs.needs,
        asked.config.sharing,
        gpu_type=candidates.gpu_type,
        gpu_keeps_off_shards=candidates.gpu_keeps_off_shards,
        reason=ONE_FIRST,
    )
    host = host_share(request, kinds, asked.config.sharing, named_cpus=named_cpus(asked.options))
    return plan._replace(request=request, host=host, kept_because="", at_once=at_once)


def tasks_at_once(asked: Submission) -> Optional[int]:
    """How many tasks of the job's array may run at once, 0 for any number; None where it is no array."""
    text = asked.options.get("array") if asked.raw.program == SBATCH else None
    if not text:
        return None
    try:
        several = len(array_tasks(text)) > 1
    except UsageError:
        return None  # sbatch says in its own words what is wrong
    limit = text.partition("%")[2]
    if not several or (limit and not limit.isdigit()):
        return None
    return int(limit or 0)


def one_at_once(asked: Submission) -> str:
    """The value of --array that starts one task."""
    return f"{(asked.options.get('array') or '').partition('%')[0]}%1"


def noted(record: CommentRecord, plan: Plan) -> CommentRecord:
    """The record of a task that waits for its array's first one, or is it."""
    options, limit = plan.asked.options, plan.asked.settings.max_slowdown
    own: Tuple[Tuple[str, bool], ...] = (
        (CPUS, names_cpus(options) or options.any_of("cpus-per-gpu")),
        (MEMORY, options.any_of("mem", "mem-per-cpu", "mem-per-gpu")),
    )
    return record._replace(
        shards=0,
        hold=plan.at_once,
        host="+".join(name for name, named in own if not named),
        slow=record.slow or (f"{limit:g}" if limit else ""),
    )
