"""What reports show of made jobs is what it was, to the letter."""

from __future__ import annotations

import json
import random
import time
from functools import cache
from pathlib import Path
from typing import Callable, Dict, Iterator, List

import pytest

from slurm_gpumem.accounting.types import JobRow
from slurm_gpumem.report.columns import FIELDS, columns, note
from slurm_gpumem.report.html.page import page
from slurm_gpumem.report.job import detail_json, job_lines
from slurm_gpumem.report.listing import TableStyle, footer, table_lines
from slurm_gpumem.report.summary import group_lines, summary_lines
from tests.accounting import made_jobs
from tests.support.kept import assert_kept


@cache
def _rows() -> List[JobRow]:
    """Of all sorts: at shared sites, at others, and with what need not be known made up or unknown."""
    rows, dice = made_jobs.made_jobs(60), random.Random(1)
    made: Dict[str, Callable[[], object]] = {
        "Optional[int]": lambda: dice.randrange(1, 3000),
        "Optional[float]": lambda: dice.choice((0.0, 0.004, 0.5, 1.0, 1.3, 70.0, 9000.0)),
        "Optional[bool]": lambda: dice.random() < 0.5,
        "Optional[str]": lambda: dice.choice(("", "oom", "x")),
    }
    kinds = {
        name: str(getattr(kind, "__forward_arg__", kind)) for name, kind in JobRow.__annotations__.items()
    }
    optional = {name: made[kind] for name, kind in kinds.items() if kind in made}
    del optional["said_at_most"]  # is known where said_slowdown is
    both = (lambda make: None, lambda make: make())
    return [
        *rows,
        *made_jobs.observed(rows[:20]),
        *(
            row._replace(
                **{name: dice.choice(both)(make) for name, make in optional.items() if dice.random() < 0.4}
            )
            for row in rows
        ),
    ]


@cache
def _shown() -> Dict[str, str]:
    rows = _rows()
    shown = {
        f"column {field.name}": "\n".join(f"{field.text(row)}|{_plain(field.value(row))}" for row in rows)
        for field in FIELDS
    }
    named = columns(",".join(field.name for field in FIELDS))
    for width in (None, 200):
        style = TableStyle(width is None, width)
        shown[f"table {width}"] = "\n".join(table_lines(rows, named, header=True, style=style))
    for name, some in (("all", rows), ("observed", rows[60:80]), ("one", rows[:1]), ("others", rows[80:])):
        shown[f"summary {name}"] = "\n".join(summary_lines(made_jobs.summary(some), (), ""))
    groups = made_jobs.by(rows, lambda row: row.user)
    shown["groups"] = "\n".join([*group_lines("user", groups, header=True), footer(made_jobs.summary(rows))])
    for number in (0, 1):
        part = rows[number::2]
        lines = [
            line for row in part for line in job_lines(made_jobs.detail(row), 1024, unicode=bool(number))
        ]
        shown[f"jobs {number}"] = "\n".join([*lines, *(note(row) for row in part)])
    shown["page"] = page(made_jobs.source(rows[:60]))
    shown["job's json"] = "\n".join(_plain(detail_json(made_jobs.detail(row), 1024)) for row in rows)
    return shown


def _plain(value: object) -> str:
    return json.dumps(value, default=str, sort_keys=True)


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def test_what_is_shown_is_what_it_was() -> None:
    assert_kept(Path(__file__).with_name("exact.json"), _shown())
