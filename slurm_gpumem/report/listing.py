"""Jobs as a table, as parsable lines, as CSV or as JSON; a million of them pass through without piling up."""

from __future__ import annotations

import csv
import json
import sys
from itertools import chain, islice
from typing import (
    Any,
    Callable,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    TextIO,
    Tuple,
    Union,
)

from slurm_gpumem.accounting.types import Filters, JobRow, JobTotals
from slurm_gpumem.report.arrays import Queued, note_of
from slurm_gpumem.report.columns import Column, Field, as_json, cell, note, parsable
from slurm_gpumem.slurm.state.queue import tasks_text
from slurm_gpumem.terminal.colour import Palette
from slurm_gpumem.text import count, fitted, printable
from slurm_gpumem.units import gpu_hours, percent

# Arrays in lists: all tasks of one array as one line with their spread, as a sweep is read.

WIDTH = 13
"""What a column of figures may take of a line where it shows a spread."""


class Sweep(NamedTuple):
    """The tasks of one array that a list would show, in order."""

    tasks: Tuple[JobRow, ...]
    queued: Queued = Queued()


Listed = Union[JobRow, Sweep]


def folded(
    rows: Iterator[JobRow],
    select: Callable[[Filters], Iterator[JobRow]],
    filters: Filters,
    queued: Callable[[], Mapping[int, Queued]],
) -> Iterator[Listed]:
    """The same rows, those of one array as one at the place of its first; one array is held at a time.

    Slurm is asked what waits where a task still runs.
    """
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
        runs = any(task.end is None for task in tasks)
        waits = queued().get(row.array_job, Queued()) if runs else Queued()
        yield Sweep(tuple(tasks), waits) if len(tasks) > 1 or waits.waiting else row


def expanded(listed: Iterator[Listed]) -> Iterator[JobRow]:
    """Every task on its own, those of one array together and in order."""
    for item in listed:
        yield from item.tasks if isinstance(item, Sweep) else (item,)


def sweep_text(field: Field, sweep: Sweep) -> str:
    """One cell of its line: what all tasks have in common, or from the least to the most."""
    tasks = sweep.tasks
    if field.key == "job_id":
        numbers = [task.array_task for task in tasks if task.array_task is not None]
        return tasks[0].name if len(tasks) == 1 else f"{tasks[0].array_job}_[{tasks_text(numbers)}]"
    if field.key == "note":
        return note_of(tasks, sweep.queued)
    if not field.right:
        texts = dict.fromkeys(field.text(task) for task in tasks)
        return next(iter(texts)) if len(texts) == 1 else "mixed" if field.key == "state" else "..."
    known = sorted((task for task in tasks if field.value(task) is not None), key=field.value)
    if not known:
        return ""
    low, high = field.text(known[0]), field.text(known[-1])
    return low if low == high else f"{low}..{high}"


SCHEMA = "gpumem-report/1"
_MEASURED = 2000
"""Rows that widths are taken from; later ones are cut to them."""
_LEFT_OVER = 100
_LEAST_TEXT = 6
_BAD_STATES = ("FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "TIMEOUT")


class TableStyle(NamedTuple):
    """How a table is to look."""

    unicode: bool = True
    width: Optional[int] = None
    """Of the terminal; None in a pipe, where nothing is cut to fit."""
    colours: Palette = Palette()


def table_lines(
    rows: Iterable[Listed], columns: Sequence[Column], *, header: bool, style: TableStyle
) -> Iterator[str]:
    """A table whose columns are as wide as they need to be, the last one as long as it is or as fits."""
    rows, unicode = iter(rows), style.unicode
    measured = list(islice(rows, _MEASURED))
    first = [_texts(row, columns, unicode) for row in measured]
    spreads = any(isinstance(row, Sweep) for row in measured)
    names = [column.field.name for column in columns]
    widths = []
    for at, column in enumerate(columns):
        longest = max([len(texts[at]) for texts in first], default=0)
        least = len(names[at]) if header else 1
        most = max(column.field.width, WIDTH) if spreads else column.field.width
        widths.append(column.width or max(least, min(longest, most)))
    if columns[-1].width is None and not columns[-1].field.right:
        widths[-1] = max(widths[-1], _LEFT_OVER)
    if style.width is not None:
        widths = _fitted_widths(widths, columns, style.width)
    if header:
        yield style.colours.bold(_line(names, columns, widths))
    for texts in chain(first, (_texts(row, columns, unicode) for row in rows)):
        yield _coloured(_line(texts, columns, widths), texts, columns, style.colours)


def _fitted_widths(widths: Sequence[int], columns: Sequence[Column], width: int) -> List[int]:
    """Narrower columns of text until the line fits, the last one first; figures and given widths stay."""
    found = list(widths)
    last = len(found) - 1
    least = [max(len(column.field.name), _LEAST_TEXT) for column in columns]
    while sum(found) + last > width:
        may_shrink = [
            at
            for at, column in enumerate(columns)
            if not column.field.right
            # A job's number is what one types next.
            and column.field.key != "job_id"
            and column.width is None
            and found[at] > least[at]
        ]
        if not may_shrink:
            break
        widest = last if last in may_shrink else max(may_shrink, key=lambda at: found[at])
        found[widest] -= 1
    return found


def _coloured(line: str, texts: Sequence[str], columns: Sequence[Column], colours: Palette) -> str:
    """A run that failed is red, one that runs green; the state says so in words."""
    states = [text for text, column in zip(texts, columns) if column.field.key == "state"]
    if states and states[0] in _BAD_STATES:
        return colours.red(line)
    return colours.green(line) if states == ["RUNNING"] else line


def _texts(row: Listed, columns: Sequence[Column], unicode: bool) -> List[str]:
    if isinstance(row, Sweep):
        return [sweep_text(column.field, row) for column in columns]
    texts = [column.field.text(row) for column in columns]
    if unicode:
        texts = [
            printable(note(row, "→")) if column.field.key == "note" else text
            for column, text in zip(columns, texts)
        ]
    return texts


def _line(texts: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    cells = [
        fitted(text, width).rjust(width) if column.field.right else fitted(text, width).ljust(width)
        for text, column, width in zip(texts, columns, widths)
    ]
    return " ".join(cells).rstrip()


def parsable_lines(rows: Iterable[JobRow], columns: Sequence[Column], *, header: bool) -> Iterator[str]:
    """As `sacct --parsable2`: "|" between columns, nothing cut."""
    if header:
        yield "|".join(column.field.name for column in columns)
    for row in rows:
        yield "|".join(parsable(column.field.text(row)) for column in columns)


def write_csv(rows: Iterable[JobRow], columns: Sequence[Column], file: TextIO, *, header: bool) -> None:
    """For spreadsheets: numbers in MiB, seconds and parts of 1; no text is a formula."""
    writer = csv.writer(file, lineterminator="\n")
    if header:
        writer.writerow([column.field.key for column in columns])
    for row in rows:
        writer.writerow([cell(_flat(column.field.value(row))) for column in columns])


def write_json(rows: Iterable[JobRow], file: TextIO, about: Mapping[str, Any]) -> None:
    """One object; its list of jobs is written as they come."""
    head = json.dumps({"schema": SCHEMA, **about})
    file.write(head[:-1] + ', "jobs": [')
    for number, row in enumerate(rows):
        file.write(("" if number == 0 else ",") + "\n" + json.dumps(as_json(row)))
    file.write("\n]}\n")


def _flat(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value


def footer(summary: JobTotals) -> str:
    """The list in one line."""
    if not summary.jobs:
        return "no jobs"
    said = [count(summary.jobs, "job")]
    if summary.median_error is not None:
        above = f"{summary.under_request:,} took more than their need"
        said[0] += f": median error {percent(summary.median_error)}, {above}"
    if summary.shared and summary.saved is not None:
        alone, used = gpu_hours(summary.alone_s, (summary.alone_used_s or 0) + (summary.redone_s or 0))
        said.append(f"{used} used; {alone} without sharing")
    elif summary.shared and summary.gpu_s and summary.used_s is not None:
        run, used = gpu_hours(summary.gpu_s, summary.used_s)
        said.append(f"{used} used in {run} of run time; without sharing: not known")
    elif summary.gpu_s:
        said.append(gpu_hours(summary.gpu_s)[0] + (" of run time" if summary.used_s is None else ""))
    if summary.would_of_s:
        instead, would = gpu_hours(summary.would_of_s, summary.would_s)
        said.append(f"sharing would have taken {would} instead of {instead}")
    if summary.ooms:
        said.append(f"{summary.oom_recovered:,} OOM recovered, {summary.oom_lost:,} lost")
    return "; ".join(said)


def out(lines: Iterable[str]) -> None:
    """Print lines as they come."""
    for line in lines:
        sys.stdout.write(line + "\n")
