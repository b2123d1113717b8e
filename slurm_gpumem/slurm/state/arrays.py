"""The tasks of arrays that wait or run now, of one user or everybody's."""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional

from slurm_gpumem.errors import UsageError
from slurm_gpumem.slurm.client import SlurmClient
from slurm_gpumem.slurm.state.queue import TIMEOUT_S, array_tasks

_NAME = re.compile(r"([0-9]{1,10})_(?:\[([0-9,:-]+)(?:%([0-9]+))?\]|[0-9]{1,10})")


class QueuedTasks(NamedTuple):
    """One that runs, or those that wait in one row."""

    array: int
    shown: str
    """As squeue shows them: "4711_3", "4711_[4-9%1]"."""
    running: bool
    how_many: int
    at_once: int
    """How many of the array may run at once; 0 for any number, or where the row does not say."""
    comment: str


def queued_tasks(client: SlurmClient, uid: Optional[int] = None) -> List[QueuedTasks]:
    """Those of a user, or of everybody."""
    who = ["-a"] if uid is None else ["-u", str(uid)]
    # The comment stands last: it may hold anything.
    argv = ["squeue", "-h", *who, "-t", "PENDING,RUNNING", "-o", "%i|%T|%k"]
    found = map(_parse, client.run(argv, timeout_s=TIMEOUT_S).split("\n"))
    return [tasks for tasks in found if tasks is not None]


def _parse(line: str) -> Optional[QueuedTasks]:
    shown, state, comment = [*line.split("|", 2), "", ""][:3]
    name = _NAME.fullmatch(shown)
    if name is None:
        return None
    try:
        how_many = len(array_tasks(name[2])) if name[2] else 1
    except UsageError:
        return None
    return QueuedTasks(int(name[1]), shown, state == "RUNNING", how_many, int(name[3] or 0), comment)
