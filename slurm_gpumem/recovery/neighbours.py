"""Was a GPU fault perhaps a neighbour's? Asked by the task epilog, as the user, while the job is still here.

MPS hands one client's fatal fault to all clients of that server and does not say whose it was. So a fault
counts as a neighbour's when there was one: another job at the same server that it hit too. That is the
sampler's finding, which root leaves in a note. A user's own daemon can be asked too.
"""

from __future__ import annotations

import os
import time
from typing import Iterator, List

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.formats.notes import read_fault_note
from slurm_gpumem.formats.task_file import TaskGpu, read_task_gpus
from slurm_gpumem.node.jobs import SHARED_UID, RunFolder
from slurm_gpumem.node.mps.daemons import MpsService

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
