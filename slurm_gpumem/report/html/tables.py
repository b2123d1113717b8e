"""The page's tables: plain HTML that reads without any script; the script only sorts and filters them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Generic, List, Sequence, Tuple, TypeVar, Union

from slurm_gpumem.accounting.types import JobRow, Summary
from slurm_gpumem.report.html.text import (
    clean,
    duration,
    energy,
    escaped,
    gib,
    hours,
    moment,
    percent,
)

MOST_GROUPS = 200

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


def table(name: str, caption: str, columns: Sequence[Column[Any]], rows: Sequence[Any]) -> str:
    """A sortable table; `name` and `caption` are ours, everything else is escaped."""
    # A column that nothing is known for (no DCGM, no slurmdbd) would only take room.
    columns = [c for n, c in enumerate(columns) if n == 0 or any(c.text(row) for row in rows)]
    heads = "".join(_head(column) for column in columns)
    body = "\n".join(
        "<tr>" + "".join(_cell(c, row, first=n == 0) for n, c in enumerate(columns)) + "</tr>" for row in rows
    )
    return (
        f'<div class="scroll" role="region" aria-label="{escaped(caption)}" tabindex="0">'
        f'<table id="{name}" class="sortable"><caption class="unseen">{escaped(caption)}</caption>'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _head(column: Column[Any]) -> str:
    about = f' title="{escaped(column.about, 200)}"' if column.about else ""
    side = ' class="n"' if column.number else ""
    return f"<th scope=col{side}{about}><button type=button>{escaped(column.head)}</button></th>"


def _cell(column: Column[Any], row: Any, *, first: bool) -> str:
    key = column.key(row)
    sort = (
        ""
        if key is None
        else f' data-k="{key:g}"'
        if isinstance(key, (int, float))
        else f' data-k="{escaped(key)}"'
    )
    classes = " ".join(filter(None, ("n" if column.number else "", column.mark(row))))
    word = "th scope=row" if first else "td"
    named = f' class="{classes}"' if classes else ""
    return f"<{word}{named}{sort}>{escaped(column.text(row), 120)}</{word.split()[0]}>"


def job_table(rows: Sequence[JobRow]) -> str:
    """One line per job, the latest first."""
    columns: List[Column[JobRow]] = [
        Column("Job", lambda row: str(row.job_id), lambda row: row.job_id),
        Column("User", lambda row: clean(row.user), lambda row: clean(row.user), number=False),
        Column(
            "Model",
            lambda row: clean(row.model or row.job_name),
            lambda row: clean(row.model or row.job_name),
            number=False,
        ),
        Column("GPU", _where, _where, number=False, about="where it ran last"),
        Column(
            "Est",
            lambda row: gib(row.estimate_mib),
            lambda row: row.estimate_mib,
            about="estimated peak, GiB",
        ),
        Column("Req", lambda row: gib(row.request_mib), lambda row: row.request_mib, about="requested, GiB"),
        Column(
            "Peak",
            lambda row: gib(row.peak_mib),
            lambda row: row.peak_mib,
            about="measured peak, GiB",
            mark=_above,
        ),
        Column(
            "Error",
            lambda row: percent(row.error, sign=True),
            lambda row: row.error,
            about="of the estimate; negative is too little",
        ),
        Column(
            "Unused",
            lambda row: gib(row.waste_mib),
            lambda row: row.waste_mib,
            about="granted and never used, GiB",
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
        Column("End", lambda row: moment(row.end) or "running", lambda row: row.end or 1e12, number=False),
        Column(
            "State", lambda row: clean(row.state), lambda row: clean(row.state), number=False, mark=_failed
        ),
        Column("Note", _note, _note, number=False),
    ]
    return table("jobs", "Jobs", columns, list(reversed(rows)))


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
    kind = clean(row.gpu, 16)
    shown = ", ".join(labels[:2]) + (f" +{len(labels) - 2}" if len(labels) > 2 else "")
    return clean(f"{shown} {kind}".strip() if shown else kind)


def _company(row: JobRow) -> str:
    shown = ", ".join(map(str, row.companions[:3]))
    return shown + (f" +{len(row.companions) - 3}" if len(row.companions) > 3 else "")


def _note(row: JobRow) -> str:
    if row.recovered:
        return f"out of memory, finished in run {row.attempts}"
    if row.ooms:
        return "out of memory"
    return f"{row.attempts} runs" if row.attempts > 1 else ""


def group_table(name: str, head: str, groups: Sequence[Summary]) -> Tuple[str, str]:
    """One line per user, model …; and what to say about those left out."""
    shown = groups[:MOST_GROUPS]
    left = len(groups) - len(shown)
    note = f"the {len(shown):,} largest of {len(groups):,}" if left else ""
    return table(name, f"By {head.lower()}", _group_columns(head), shown), note


def _group_columns(head: str) -> List[Column[Summary]]:
    return [
        Column(head, lambda one: clean(one.group) or "(none)", lambda one: clean(one.group), number=False),
        Column("Jobs", lambda one: f"{one.jobs:,}", lambda one: one.jobs),
        Column(
            "GPU-hours",
            lambda one: hours(one.used_s),
            lambda one: one.used_s,
            about="in which these jobs took a GPU",
        ),
        Column(
            "Alone",
            lambda one: hours(one.gpu_s),
            lambda one: one.gpu_s,
            about="GPU-hours with a GPU for each job",
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


def _sm(one: Summary) -> Union[float, None]:
    return one.sm_s / one.sm_gpu_s if one.sm_gpu_s else None


def _energy(one: Summary) -> Union[float, None]:
    return one.energy_j / one.energy_jobs if one.energy_jobs else None
