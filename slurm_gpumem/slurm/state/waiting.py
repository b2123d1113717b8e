"""The pending tasks of a user's arrays, as Slurm has them: those that were not started yet share one row."""

from __future__ import annotations

import os
import re
from typing import List, NamedTuple, Optional, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.slurm.client import SlurmClient
from slurm_gpumem.slurm.state.queue import TIMEOUT_S, array_tasks, tasks_text

_COLUMNS = (
    ("ArrayJobID", 16), ("NumCPUs", 16), ("Partition", 400), ("tres-per-node", 400), ("Comment", 1100),
)  # fmt: skip
_FORMAT = ",".join([*(f"{name}:{width}" for name, width in _COLUMNS), "JobArrayID:65000"])
_NAME = re.compile(r"([0-9]{1,10})_(?:\[([0-9,:-]+)(?:%([0-9]+))?\]|([0-9]{1,10}))")


class WaitingTasks(NamedTuple):
    """Tasks of one array that ask for the same."""

    array: int
    tasks: str
    """As --array names them."""
    cpus: int
    partitions: Tuple[str, ...]
    request: str
    """Their --gres, as Slurm shows it."""
    comment: str
    at_once: int = 0
    """How many of the array may run at once; 0 for any number, or where they are no longer one row."""

    @property
    def name(self) -> str:
        """As scontrol takes them all: it knows no steps ("0-8:2")."""
        return f"{self.array}_[{tasks_text(array_tasks(self.tasks))}]"

    @property
    def first(self) -> str:
        """One of them, as scontrol takes it."""
        return f"{self.array}_{array_tasks(self.tasks)[0]}"

    @property
    def how_many(self) -> int:
        """How many they are."""
        return len(array_tasks(self.tasks))


def waiting_tasks(client: SlurmClient, uid: Optional[int] = None) -> List[WaitingTasks]:
    """A user's pending tasks of arrays; one's own without a number."""
    argv = [
        "squeue",
        "-h",
        "-a",
        "-u",
        str(os.geteuid() if uid is None else uid),
        "-t",
        "PENDING",
        "-O",
        _FORMAT,
    ]
    text = client.run(argv, timeout_s=TIMEOUT_S)
    return [found for found in map(_parse, text.split("\n")) if found is not None]


def _parse(line: str) -> Optional[WaitingTasks]:
    at, values = 0, []
    for _, width in _COLUMNS:
        values.append(line[at : at + width].strip())
        at += width
    array, cpus, partitions, request, comment = values
    name = _NAME.fullmatch(line[at:].strip())
    if name is None or name[1] != array or not cpus.isdigit():
        return None
    tasks = name[2] or name[4]
    try:
        array_tasks(tasks)
    except UsageError:
        return None
    of = tuple(partitions.split(","))
    return WaitingTasks(int(array), tasks, int(cpus), of, request, comment, int(name[3] or 0))
