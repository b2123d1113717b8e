"""Arrays in lists: all tasks of one array as one line with their spread, as a sweep is read."""

from __future__ import annotations

from collections import Counter
from typing import Callable, Iterator, List, NamedTuple, Sequence, Set, Tuple, Union

from slurm_gpumem.accounting.types import Filters, JobRow
from slurm_gpumem.report.columns import Field
from slurm_gpumem.text import count, printable

WIDTH = 13
"""What a column of figures may take of a line where it shows a spread."""


class Sweep(NamedTuple):
    """The tasks of one array that a list would show, in order."""

    tasks: Tuple[JobRow, ...]


Listed = Union[JobRow, Sweep]


def folded(
    rows: Iterator[JobRow], select: Callable[[Filters], Iterator[JobRow]], filters: Filters
) -> Iterator[Listed]:
    """The same rows, those of one array as one at the place of its first; one array is held at a time."""
    shown: Set[Tuple[str, int]] = set()
    for row in rows:
        if row.array_job is None:
            yield row
            continue
        key = (row.cluster, row.array_job)
        if key in shown:
            continue
        shown.add(key)
        beside = select(filters._replace(jobs=(row.array_job,)))
        tasks = [task for task in beside if (task.cluster, task.array_job) == key]
        yield Sweep(tuple(tasks)) if len(tasks) > 1 else row


def expanded(listed: Iterator[Listed]) -> Iterator[JobRow]:
    """Every task on its own, those of one array together and in order."""
    for item in listed:
        yield from item.tasks if isinstance(item, Sweep) else (item,)


def sweep_text(field: Field, sweep: Sweep) -> str:
    """One cell of its line: what all tasks have in common, or from the least to the most."""
    tasks = sweep.tasks
    if field.key == "job_id":
        numbers = [task.array_task for task in tasks if task.array_task is not None]
        return f"{tasks[0].array_job}_[{_ranges(numbers)}]"
    if field.key == "note":
        states = Counter(task.state for task in tasks)
        listed = ", ".join(f"{number} {printable(state)}" for state, number in states.most_common())
        return f"{count(len(tasks), 'task')}: {listed}"
    if not field.right:
        texts = dict.fromkeys(field.text(task) for task in tasks)
        return next(iter(texts)) if len(texts) == 1 else "mixed" if field.key == "state" else "..."
    known = sorted((task for task in tasks if field.value(task) is not None), key=field.value)
    if not known:
        return ""
    low, high = field.text(known[0]), field.text(known[-1])
    return low if low == high else f"{low}..{high}"


def _ranges(numbers: Sequence[int]) -> str:
    """ "0-3,5" of 0, 1, 2, 3 and 5."""
    spans: List[List[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
