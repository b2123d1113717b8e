"""The task file: what the prolog, as root, tells the job's own tasks; words separated by blanks, a line each.

Written by the prolog, by its shell alone where nobody serves it in time; read by prolog/task_prolog.sh and
task_epilog.sh, and here by recovery.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Iterator, NamedTuple, Optional, Tuple

from slurm_gpumem.files import primary_group, write_atomic

_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)


class TaskGpu(NamedTuple):
    """One GPU of the job."""

    number: int
    """As SLURM_JOB_GPUS counts."""
    uuid: str
    pipe: str
    """The folder of the user's MPS daemon there."""
    memory_mib: int
    """0 when it is not known."""


class TaskFile(NamedTuple):
    """How the job's tasks are to use its GPUs; every word is checked or our own."""

    mode: str
    """Only "mps" leads to a daemon."""
    shard_mib: int
    headroom_mib: int
    claim_mib: Optional[int]
    """What its record claims to have been given."""
    record: bool
    """Whether its comment holds a record."""
    gpus: Tuple[TaskGpu, ...]
    one_log: bool = False
    """Whether Slurm writes its output and its errors to one file; where not known, it does not."""
    low_priority: bool = False
    """Whether light jobs at the same server come first."""
    slot: Optional[Tuple[int, int]] = None
    """Unix times of its slot's end and of when to save before it."""
    run: int = 0
    """As Slurm counts restarts."""


def write_task_file(path: Path, task: TaskFile, uid: int) -> None:
    """Written last, so that it never points at a daemon that is not there; for the job's own user to read."""
    text = format_task_file(task)
    write_atomic(path, text, mode=0o640, reader_uid=uid, reader_gid=primary_group(uid))


def format_task_file(task: TaskFile) -> str:
    """The file's text."""
    lines = [
        f"mode {task.mode}",
        f"shard_mib {task.shard_mib}",
        f"headroom_mib {task.headroom_mib}",
        # For a task_prolog.sh of before, which sets no limit without this word.
        "limits yes",
        *([] if task.claim_mib is None else [f"claim_mib {task.claim_mib}"]),
        f"run {task.run}",
        *(["record yes"] if task.record else []),
        *(["one_log yes"] if task.one_log else []),
        *(["priority low"] if task.low_priority else []),
        *(["slot {} {}".format(*task.slot)] if task.slot else []),
        *(f"gpu {gpu.number} {gpu.uuid} {gpu.pipe} {gpu.memory_mib}" for gpu in task.gpus),
    ]
    return "\n".join(lines) + "\n"


def read_task_run(path: Path) -> int:
    """The run that a task file is for; 0 where it does not say."""
    try:
        found = re.search(r"^run ([0-9]{1,9})$", path.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def read_task_gpus(path: Path) -> Tuple[TaskGpu, ...]:
    """The GPUs of a task file; none when it is not there."""
    try:
        return tuple(_gpus(path.read_text(errors="replace")))
    except OSError:
        return ()


def _gpus(text: str) -> Iterator[TaskGpu]:
    for words in map(str.split, text.splitlines()):
        if (
            len(words) == 5
            and words[0] == "gpu"
            and _NUMBER.fullmatch(words[1])
            and _NUMBER.fullmatch(words[4])
        ):
            yield TaskGpu(int(words[1]), words[2], words[3], int(words[4]))
