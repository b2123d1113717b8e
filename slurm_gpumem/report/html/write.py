"""`gpumem report --html FILE`: the report as one page for a browser."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Dict, Iterator

from slurm_gpumem.accounting.store import Store
from slurm_gpumem.accounting.types import Filters, JobRow
from slurm_gpumem.named_files import check_target, save
from slurm_gpumem.report.html.page import need_jinja2, page
from slurm_gpumem.report.html.types import PageSource
from slurm_gpumem.terminal.progress import ProgressBar
from slurm_gpumem.terminal.say import say
from slurm_gpumem.text import count
from slurm_gpumem.units import minute

# Users as numbers, for a page that is shown to others: "user 1" is the one with the most GPU-hours.


def numbered(source: PageSource) -> PageSource:
    """The same page without users' names, and without names of jobs, in which users often write their own.

    Jobs keep their numbers, by which their owners find them.
    """
    numbers: Dict[str, str] = {}

    def number(user: str) -> str:
        return numbers.setdefault(user, f"user {len(numbers) + 1}")

    for user in source.users:
        number(user)
    rows = (row._replace(user=number(row.user), job_name="") for row in source.rows)
    return replace(source, rows=rows, names=False)


def write_html(store: Store, filters: Filters, output: str, *, names: bool) -> int:
    """Make the page; "-" is standard output. One user's is theirs; on all others' users are numbered."""
    # Before the work, not after it: what is missing is known at once.
    need_jinja2()
    target = None if output == "-" else check_target(output, "report.html")
    with ProgressBar("reading jobs") as bar:
        source = _source(store, filters, bar)
        text = page(source if names or source.personal else numbered(source))
    if target is None:
        sys.stdout.write(text)
        return 0
    others = store.freshness.everybody
    save(target, text, mode=0o600 if others else None)
    size = f"{len(text.encode()) / 1e6:.1f} MB"
    whose = "; it shows everybody's jobs: only you can read it" if others else ""
    say(f"{output}: {count(source.total.jobs, 'job')}, {size}, needs nothing but a browser{whose}")
    return 0


def _source(store: Store, filters: Filters, bar: ProgressBar) -> PageSource:
    total = store.summary(filters)

    def rows() -> Iterator[JobRow]:
        for number, row in enumerate(store.select(filters), 1):
            yield row
            bar(number, total.jobs)

    return PageSource(
        rows=rows(),
        total=total,
        users=[one.group for one in store.summary_by("user", filters)],
        by_day=store.summary_by("day", filters),
        freshness=store.freshness,
        detail=store.detail,
        selection=in_words(filters),
        made_at=time.time(),
        personal=not store.freshness.everybody or len(filters.users) == 1,
    )


def in_words(filters: Filters) -> str:
    """Which jobs were asked for: "user usr1, since 2026-11-08 05:20"."""
    lists = (
        ("user", filters.users),
        ("account", filters.accounts),
        ("partition", filters.partitions),
        ("model", filters.models),
        ("state", filters.states),
        ("node", filters.nodes),
        ("job", tuple(map(str, filters.jobs))),
    )
    words = [f"{name} {' or '.join(values)}" for name, values in lists if values]
    words += [f"since {minute(filters.since)}"] if filters.since is not None else []
    words += [f"until {minute(filters.until)}"] if filters.until is not None else []
    return ", ".join(words)
