"""Was a GPU fault perhaps a neighbour's? Asked by the task epilog, as the user, while the job is still here.

MPS hands one client's fatal fault to all of its user's clients on that GPU and does not say whose it was. So
a fault counts as a neighbour's when there was one: another job of the same user at the same daemon, and
that daemon's server out of service. Everything read here is the user's own: their daemon, their jobs' files.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Iterator, List, NamedTuple, Optional, Tuple

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.files import read_json
from slurm_gpumem.node.jobs import RunFolder
from slurm_gpumem.node.mps import MpsService

_NOTE_S = 30.0
"""How long the note of the first of several victims holds for the others."""


class MpsClient(NamedTuple):
    """A job's connection to one MPS daemon."""

    uuid: str
    pipe: Path


def jobs_hit_too(folder: RunFolder, config: NodeConfig, job_id: int, uid: int) -> List[int]:
    """The user's other jobs that a fault of its MPS server has hit too; none when there was no fault."""
    others = set()
    service = MpsService(folder, config.mps_control)
    for client in clients_of(folder, job_id):
        note = _note(client)
        if note is not None:
            others |= set(note)
        elif service.faulted(client.uuid, uid):
            others |= set(_neighbours(folder, client))
    return sorted(others - {job_id})


def clients_of(folder: RunFolder, job_id: int) -> Tuple[MpsClient, ...]:
    """The daemons that the task prolog pointed a job at, from the file that it reads too."""
    return tuple(_read_task_file(folder.task_file(job_id)))


def _read_task_file(path: Path) -> Iterator[MpsClient]:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return
    for words in map(str.split, lines):
        if len(words) == 5 and words[0] == "gpu":
            yield MpsClient(words[2], Path(words[3]))


def _neighbours(folder: RunFolder, client: MpsClient) -> Iterator[int]:
    try:
        names = os.listdir(folder.jobs)
    except OSError:
        return
    for name in names:
        number, _, kind = name.partition(".")
        if kind == "task" and number.isdigit() and client in clients_of(folder, int(number)):
            yield int(number)


def _note(client: MpsClient) -> Optional[List[int]]:
    """The jobs that the first victim's epilog found at the faulted server, when that was just now."""
    note = read_json(client.pipe.with_name("fault.json"))
    if not isinstance(note, dict) or not isinstance(note.get("jobs"), list):
        return None
    at = note.get("at")
    recent = isinstance(at, (int, float)) and time.time() - at <= _NOTE_S
    return [job for job in note["jobs"] if isinstance(job, int)] if recent else None
