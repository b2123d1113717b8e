"""What reports show of made jobs is what it was, to the letter."""

from __future__ import annotations

import json
import random
import re
import time
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Callable, Dict, Iterator, List

import pytest

from slurm_gpumem import estimate
from slurm_gpumem.accounting.types import JobRow, JobTotals, Waster
from slurm_gpumem.report.columns import FIELDS, columns, note
from slurm_gpumem.report.html.page import page
from slurm_gpumem.report.job import detail_json, job_lines
from slurm_gpumem.report.listing import TableStyle, footer, table_lines
from slurm_gpumem.report.script_trace import rank_notes, trace_lines
from slurm_gpumem.report.summary import group_lines, summary_lines
from slurm_gpumem.summaries.reader import read_summary
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
    for used in (1800.0, 3996.0):  # more than were held, too
        total = JobTotals("", jobs=2, cpu_held_s=3600.0, cpu_used_s=used)
        wasters = [
            Waster("usr1", 1, 20480 * held_s, 5120 * held_s, 7) for held_s in (36_000.0, 360.0, 10.0, 1.0)
        ]
        shown[f"summary of CPUs {used}"] = "\n".join(summary_lines(total, wasters, ""))
    groups = made_jobs.by(rows, lambda row: row.user)
    shown["groups"] = "\n".join([*group_lines("user", groups, header=True), footer(made_jobs.summary(rows))])
    for number in (0, 1):
        part = rows[number::2]
        lines = [
            line for row in part for line in job_lines(made_jobs.detail(row), 1024, unicode=bool(number))
        ]
        shown[f"jobs {number}"] = "\n".join([*lines, *(note(row) for row in part)])
    # Sums differ in their last digit from one Python to another.
    shown["page"] = re.sub(r"\.(\d{9})\d+", r".\1", page(made_jobs.source(rows[:60])))
    shown["traces"] = _traces()
    shown["job's json"] = "\n".join(_plain(detail_json(made_jobs.detail(row), 1024)) for row in rows)
    return shown


def _traces() -> str:
    """What is said of traced commands."""
    dice, said = random.Random(2), []
    summary = read_summary(Path(__file__).resolve().parents[2] / "docs" / "examples" / "train.json")
    for number in range(200):
        estimated = estimate(summary, gpu=dice.choice(("a100", "v100")), gpus=dice.choice((None, 4)))
        facts = {
            "kind": dice.choice(("training", "training", "inference")), "passes": dice.randrange(3),
            "steps": dice.randrange(3), "ended": dice.random() < 0.5,
            "grown_bytes": dice.choice((0, 1 << 20, 1 << 22)),
            "phases": dice.sample(["forward", "backward", "optimizer", "evaluate", "checkpoint"], 3),
            "unfinished": dice.choice(("", "2 of 30 epochs")), "failure": dice.choice(("", "no\nfile " * 30)),
            "onward_failure": dice.choice(("", "none left", "x\ny" * 90)),
        }  # fmt: skip
        changed = [f"/home/u/{'long ' * dice.randrange(9)}{name}" for name in range(dice.randrange(6))]
        private = {
            "files": dice.choice(("overlay", "landlock", "")), "why": dice.choice(("", "old kernel")),
        }  # fmt: skip
        traced = SimpleNamespace(
            facts=facts, seconds=number / 7, ranks=dice.randrange(1, 4), changed=changed, private=private
        )
        said += trace_lines("python train.py" * dice.randrange(1, 9), summary, traced, estimated, 1024)
        said += rank_notes(summary, traced)
    return "\n".join(said)


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
