"""The tasks of a job array, as --array names them."""

from __future__ import annotations

import re
from typing import List, Tuple

from slurm_gpumem.errors import UsageError

_PART = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")
_MOST = 1_000_000


def array_tasks(text: str) -> Tuple[int, ...]:
    """The tasks of "0-9", "1,3,5-7", "0-100:10%4", in order; UsageError where sbatch would refuse it."""
    found: List[int] = []
    for part in text.partition("%")[0].split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"--array={text}: {part!r} is not a task or a range like 0-9")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or step < 1 or (last - first) // step >= _MOST:
            raise UsageError(f"--array={text}: {part!r} is not a range of tasks")
        found += range(first, last + 1, step)
    return tuple(sorted(set(found)))
