"""What stands in the page's tables, and what they are sorted by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Generic, List, NamedTuple, Sequence, TypeVar, Union

from slurm_gpumem.accounting.types import JobRow, JobTotals
from slurm_gpumem.text import clipped
from slurm_gpumem.units import duration, energy, hours, minute, percent, short_mib

MOST_GROUPS = 200
_LONGEST = 64
"""Characters of what users name."""

Row = TypeVar("Row")
Key = Union[str, float, int, None]


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column: what stands in it, and what it is sorted by."""

    head: str
    text: Callable[[Row], str]
    key: Callable[[Row], Key]
    number: bool = True
    about: str = ""
    """What the head means, where it needs more than its word."""
    mark: Callable[[Row], str] = lambda row: ""
    """A class for the cell: "bad" where something is wrong."""


class Cell(NamedTuple):
    """One cell as the template writes it."""

    text: str
    key: Key
    classes: str


class Table(NamedTuple):
    """A table as the template writes it."""

    name: str
    caption: str
    columns: Sequence[Column[Any]]
    rows: Sequence[Sequence[Cell]]
    note: str
    """What is to be said of it, like what was left out."""


def _table(
    name: str, caption: str, columns: Sequence[Column[Row]], rows: Sequence[Row], note: str = ""
) -> Table:
    # A column that nothing is known for (no DCGM, no slurmdbd) would only take room.
    columns = [c for n, c in enumerate(columns) if n == 0 or any(c.text(row) for row in rows)]
    return Table(name, caption, columns, [[_cell(c, row) for c in columns] for row in rows], note)


def _cell(column: Column[Row], row: Row) -> Cell:
    classes = " ".join(filter(None, ("n" if column.number else "", column.mark(row))))
    return Cell(column.text(row), column.key(row), classes)


def _named(
    head: str, get: Callable[[Row], str], about: str = "", mark: Callable[[Row], str] = lambda row: ""
) -> Column[Row]:
    """A column of names that users chose."""

    def shown(row: Row) -> str:
        return clipped(get(row), _LONGEST)

    return Column(head, shown, shown, number=False, about=about, mark=mark)


def job_table(rows: Sequence[JobRow], note: str) -> Table:
    """One line per job, the latest first."""
    columns: List[Column[JobRow]] = [
        Column("Job", lambda row: row.name, lambda row: row.job_id),
        _named("User", lambda row: row.user),
        _named("Model", lambda row: row.model or row.job_name),
        _named("GPU", _where, "where it ran last"),
        Column(
            "Est",
            lambda row: short_mib(row.estimate_mib),
            lambda row: row.estimate_mib,
            about="estimated peak",
        ),
        Column("Req", lambda row: short_mib(row.request_mib), lambda row: row.request_mib, about="requested"),
        Column(
            "Peak",
            lambda row: short_mib(row.peak_mib),
            lambda row: row.peak_mib,
            about="measured peak",
            mark=_above,
        ),
        Column(
            "Error",
            lambda row: percent(row.shown_error, sign=True),
            lambda row: row.error,
            about="of the estimate; negative is too little",
        ),
        Column(
            "Unused",
            lambda row: short_mib(row.waste_mib),
            lambda row: row.waste_mib,
            about="granted and never used",
        ),
        Column(
            "SM",
            lambda row: percent(row.sm_share),
            lambda row: row.sm_share,
            about="its part of the GPU's SM activity",
        ),
        Column("Energy", lambda row: energy(row.energy_j), lambda row: row.energy_j),
        Column(
            "With",
            _company,
            lambda row: len(row.companions),
            number=False,
            about="jobs that it met on its GPUs",
        ),
        Column("Wait", lambda row: duration(row.wait_s), lambda row: row.wait_s, about="in the queue"),
        Column("Ran", lambda row: duration(row.run_s), lambda row: row.run_s),
        Column("End", lambda row: minute(row.end) or "running", lambda row: row.end or 1e12, number=False),
        _named("State", lambda row: row.state, mark=_failed),
        _named("Note", _note),
    ]
    return _table("jobs", "Jobs", columns, list(reversed(rows)), note)


def _above(row: JobRow) -> str:
    return (
        "bad"
        if row.peak_mib is not None and row.request_mib is not None and row.peak_mib > row.request_mib
        else ""
    )


def _failed(row: JobRow) -> str:
    return "bad" if row.state.startswith(("FAILED", "OUT_OF", "NODE_FAIL", "TIMEOUT")) else ""


def _where(row: JobRow) -> str:
    labels = [device.label for device in row.devices]
    kind = clipped(row.gpu, 16)
    shown = ", ".join(labels[:2]) + (f" +{len(labels) - 2}" if len(labels) > 2 else "")
    return f"{shown} {kind}".strip() if shown else kind


def _company(row: JobRow) -> str:
    shown = ", ".join(row.company[:3])
    return shown + (f" +{len(row.companions) - 3}" if len(row.companions) > 3 else "")


def _note(row: JobRow) -> str:
    if row.recovered:
        return f"out of memory, finished in run {row.attempts}"
    if row.ooms:
        return "out of memory"
    return f"{row.attempts} runs" if row.attempts > 1 else ""


def group_table(name: str, head: str, groups: Sequence[JobTotals]) -> Table:
    """One line per user, model …"""
    shown = groups[:MOST_GROUPS]
    note = f"the {len(shown):,} largest of {len(groups):,}" if len(shown) < len(groups) else ""
    return _table(name, f"By {head if head == 'GPU' else head.lower()}", _group_columns(head), shown, note)


def _group_columns(head: str) -> List[Column[JobTotals]]:
    return [
        _named(head, lambda one: one.group or "(none)"),
        Column("Jobs", lambda one: f"{one.jobs:,}", lambda one: one.jobs),
        Column(
            "GPU-hours",
            lambda one: hours(one.used_s),
            lambda one: one.used_s,
            about="in which these jobs took a GPU",
        ),
        Column(
            "Alone",
            lambda one: hours(one.alone_s or None),
            lambda one: one.alone_s,
            about="GPU-hours with a GPU for each job, where known",
        ),
        Column(
            "Jobs/GPU",
            lambda one: "" if one.jobs_per_gpu is None else f"{one.jobs_per_gpu:.1f}",
            lambda one: one.jobs_per_gpu,
            about="average on a GPU that has any",
        ),
        Column(
            "Error",
            lambda one: percent(one.median_error),
            lambda one: one.median_error,
            about="median error of the estimates",
        ),
        Column(
            "P95",
            lambda one: percent(one.p95_error),
            lambda one: one.p95_error,
            about="95 % of the estimates have a smaller error",
        ),
        Column(
            "Too little",
            lambda one: f"{one.under_request:,}" if one.estimated else "",
            lambda one: one.under_request if one.estimated else None,
            about="jobs whose peak was above their request",
            mark=lambda one: "bad" if one.under_request else "",
        ),
        Column(
            "OOM",
            lambda one: f"{one.ooms:,}",
            lambda one: one.ooms,
            about="runs that ran out of GPU memory",
            mark=lambda one: "bad" if one.oom_lost else "",
        ),
        Column(
            "Unused",
            lambda one: percent(one.unused),
            lambda one: one.unused,
            about="part of the granted memory that was never used",
        ),
        Column(
            "SM",
            lambda one: percent(_sm(one)),
            _sm,
            about="mean SM activity of its jobs, their part of the GPU",
        ),
        Column("Energy/job", lambda one: energy(_energy(one)), _energy),
    ]


def _sm(one: JobTotals) -> Union[float, None]:
    return one.sm_s / one.sm_gpu_s if one.sm_gpu_s else None


def _energy(one: JobTotals) -> Union[float, None]:
    return one.energy_j / one.energy_jobs if one.energy_jobs else None
