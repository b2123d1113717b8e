"""A task of an array ran out of memory: those that wait ask for as much as it now does."""

from __future__ import annotations

from typing import Optional

from slurm_gpumem.errors import SlurmError
from slurm_gpumem.formats.comment import CommentRecord, append_record, format_record, own_words, parse_record
from slurm_gpumem.formats.decisions import Decision
from slurm_gpumem.slurm.client import SlurmClient
from slurm_gpumem.slurm.gres import gres_word, held_by, replaced
from slurm_gpumem.slurm.state.controller import Controller
from slurm_gpumem.slurm.state.queue import Job
from slurm_gpumem.slurm.state.waiting import WaitingTasks, waiting_tasks


def raise_waiting(client: SlurmClient, slurm: Controller, job: Job, decision: Decision) -> Optional[str]:
    """Only tasks whose share was measured on their array's first one; what was done, None where nothing was.

    A whole GPU for one task is no reason to give one to all.
    """
    array = job.name.partition("_")[0]
    if array == job.name or decision.whole or not decision.shards:
        return None
    done = 0
    for tasks in waiting_tasks(client, uid=job.uid):
        record = parse_record(tasks.comment) if tasks.array == int(array) else None
        if record is not None and _lacks(record, decision.shards):
            try:
                done += _ask_for(slurm, tasks, record._replace(shards=decision.shards))
            except SlurmError as error:
                return f"array {array}: its waiting tasks keep their shares: {error}"
    return f"array {array}: {done} waiting tasks ask for {decision.shards} shards, too" if done else None


def _lacks(record: CommentRecord, shards: int) -> bool:
    return record.hold is not None and 0 < (record.shards or 0) < shards


def _ask_for(slurm: Controller, tasks: WaitingTasks, record: CommentRecord) -> int:
    held = held_by(tasks.request)
    comment = append_record(own_words(tasks.comment) or None, format_record(record))
    if held is None or held.gres == "gpu" or comment is None:
        return 0  # changed meanwhile, and not by us
    gres = replaced(tasks.request, gres_word(held.gres, held.gpu_type, record.shards or 0))
    slurm.update(tasks.name, Gres=gres, Comment=comment)
    return tasks.how_many
