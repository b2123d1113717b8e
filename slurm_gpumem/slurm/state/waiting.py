"""The pending tasks of a user's arrays, as Slurm has them."""

from __future__ import annotations

import os
import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from slurm_gpumem.slurm.client import SlurmClient
from slurm_gpumem.slurm.state.queue import TIMEOUT_S, tasks_text

# The comment is last: Slurm pads to bytes, and only there are letters that have several.
_COLUMNS = (
    ("ArrayJobID", 16), ("JobArrayID", 32), ("NumCPUs", 16), ("Partition", 400), ("tres-per-node", 400),
    ("Comment", 1100),
)  # fmt: skip
_FORMAT = ",".join(f"{name}:{width}" for name, width in _COLUMNS)
_NAME = re.compile(r"([0-9]{1,10})_([0-9]{1,10})")
_THROTTLE = re.compile(r"\bArrayTaskThrottle=([0-9]{1,10})\b")
_Row = Tuple[int, int, Tuple[str, ...], str, str]


class WaitingTasks(NamedTuple):
    """Tasks of one array that ask for the same."""

    array: int
    numbers: Tuple[int, ...]
    cpus: int
    partitions: Tuple[str, ...]
    request: str
    """Their --gres, as Slurm shows it."""
    comment: str

    @property
    def name(self) -> str:
        """As scontrol takes them all: it knows no steps ("0-8:2")."""
        return f"{self.array}_[{tasks_text(self.numbers)}]"

    @property
    def last(self) -> str:
        """One of them, for scontrol; those that were requeued, and may still be ending, come earlier."""
        return f"{self.array}_{self.numbers[-1]}"

    @property
    def how_many(self) -> int:
        """How many they are."""
        return len(self.numbers)


def waiting_tasks(client: SlurmClient, uid: Optional[int] = None) -> List[WaitingTasks]:
    """A user's pending tasks of arrays; one's own without a number."""
    user = str(os.geteuid() if uid is None else uid)
    # A row for each: else squeue puts requeued tasks to the others, whatever they ask for.
    text = client.run(
        ["squeue", "-h", "-a", "-r", "-u", user, "-t", "PENDING", "-O", _FORMAT], timeout_s=TIMEOUT_S
    )
    found: Dict[_Row, List[int]] = {}
    for line in text.split("\n"):
        cells, at = [], 0
        for _, width in _COLUMNS:
            cells.append(line[at : at + width].strip())
            at += width
        array, shown, cpus, partitions, request, comment = cells
        name = _NAME.fullmatch(shown)
        if name is not None and name[1] == array and cpus.isdigit():
            row = (int(array), int(cpus), tuple(partitions.split(",")), request, comment)
            found.setdefault(row, []).append(int(name[2]))
    return [WaitingTasks(row[0], tuple(sorted(numbers)), *row[1:]) for row, numbers in found.items()]


def at_once(client: SlurmClient, array: int) -> int:
    """How many of an array's tasks may run at once, 0 for any number."""
    text = client.run(["scontrol", "-o", "show", "job", str(array)], timeout_s=TIMEOUT_S)
    # Only one of its records has it; the user's words come after it.
    found = [_THROTTLE.search(line.partition(" JobName=")[0]) for line in text.splitlines()]
    return max((int(one[1]) for one in found if one), default=0)
