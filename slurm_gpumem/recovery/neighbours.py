"""Was a GPU fault perhaps a neighbour's? Asked by the task epilog, as the user, while the job is still here.

MPS hands one client's fatal fault to all of its user's clients on that GPU and does not say whose it was. So
a fault counts as a neighbour's when there was one: another job of the same user at the same daemon, and
that daemon's server out of service. Everything read here is the user's own: their daemon, their jobs' files.
"""

from __future__ import annotations

import os
import time
from typing import Iterator, List

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.formats.notes import read_fault_note
from slurm_gpumem.formats.task_file import read_task_gpus
from slurm_gpumem.node.jobs import RunFolder
from slurm_gpumem.node.mps import MpsService


def jobs_hit_too(folder: RunFolder, config: NodeConfig, job_id: int, uid: int) -> List[int]:
    """The user's other jobs that a fault of its MPS server has hit too; none when there was no fault."""
    others = set()
    service = MpsService(folder, config.mps_control)
    for gpu in read_task_gpus(folder.task_file(job_id)):
        note = read_fault_note(folder.fault_note(gpu.uuid, uid), time.time())
        if note is not None:
            others |= set(note.jobs)
        elif service.faulted(gpu.uuid, uid):
            others |= set(_at_daemon(folder, gpu.pipe))
    return sorted(others - {job_id})


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
