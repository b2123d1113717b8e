"""A task of an array ran out of memory: those that wait ask for as much as it now does."""

from __future__ import annotations

from typing import Optional

from slurm_gpumem.errors import SlurmError
from slurm_gpumem.formats.comment import append_record, format_record, own_words
from slurm_gpumem.formats.decisions import Decision
from slurm_gpumem.slurm.client import SlurmClient
from slurm_gpumem.slurm.gres import gres_word, held_by, replaced
from slurm_gpumem.slurm.state.controller import Controller
from slurm_gpumem.slurm.state.queue import Job
from slurm_gpumem.submission.sweep.waiting import WaitingTasks, waiting_tasks


def raise_waiting(client: SlurmClient, slurm: Controller, job: Job, decision: Decision) -> Optional[str]:
    """Only tasks whose share was measured on their array's first one; what was done, None where nothing was.

    A whole GPU for one task is no reason to give one to all.
    """
    array = job.name.partition("_")[0]
    if array == job.name or decision.whole or not decision.shards:
        return None
    done = 0
    for tasks in waiting_tasks(client, uid=job.uid):
        if tasks.array == int(array) and _lacks(tasks, decision.shards):
            try:
                _ask_for(slurm, tasks, decision.shards)
            except SlurmError as error:
                return f"array {array}: its waiting tasks keep their shares: {error}"
            done += tasks.how_many
    return f"array {array}: {done} waiting tasks ask for {decision.shards} shards, too" if done else None


def _lacks(tasks: WaitingTasks, shards: int) -> bool:
    held = held_by(tasks.request)
    return tasks.record.hold is not None and held is not None and 0 < (tasks.record.shards or 0) < shards


def _ask_for(slurm: Controller, tasks: WaitingTasks, shards: int) -> None:
    held = held_by(tasks.request)
    assert held is not None
    fields = {"Gres": replaced(tasks.request, gres_word(held.gres, held.gpu_type, shards))}
    record = format_record(tasks.record._replace(shards=shards))
    comment = append_record(own_words(tasks.comment) or None, record)
    slurm.update(tasks.name, **fields, **({"Comment": comment} if comment else {}))
