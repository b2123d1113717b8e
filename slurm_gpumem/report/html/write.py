"""`gpumem report --html FILE`: the report as one page for a browser."""

from __future__ import annotations

import os
import stat
import sys
import time
from pathlib import Path
from typing import Iterator

from slurm_gpumem.accounting.store import Store
from slurm_gpumem.accounting.types import Filters, JobRow
from slurm_gpumem.cli.run import say
from slurm_gpumem.errors import UsageError
from slurm_gpumem.files import write_atomic
from slurm_gpumem.report.html.page import page
from slurm_gpumem.report.html.text import moment
from slurm_gpumem.report.html.types import PageSource
from slurm_gpumem.terminal.progress import ProgressBar

_WASTERS = 10


def write_html(store: Store, filters: Filters, output: str) -> int:
    """Make the page; "-" is standard output."""
    # Before the work, not after it: a folder that is not there is known at once.
    target = None if output == "-" else _target(output)
    with ProgressBar("reading jobs") as bar:
        source = _source(store, filters, bar)
        text = page(source)
    if target is None:
        sys.stdout.write(text)
        return 0
    others = store.freshness.everybody
    _write(target, text, private=others)
    size = f"{len(text.encode()) / 1e6:.1f} MB"
    whose = "; it shows everybody's jobs: only you can read it" if others else ""
    say(f"{output}: {source.total.jobs:,} jobs, {size}, needs nothing but a browser{whose}")
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
        by_user=store.summary_by("user", filters),
        by_model=store.summary_by("model", filters),
        by_gpu=store.summary_by("gpu", filters),
        by_day=store.summary_by("day", filters),
        wasters=store.wasters(filters, limit=_WASTERS),
        freshness=store.freshness,
        detail=store.detail,
        selection=in_words(filters),
        made_at=time.time(),
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
    words += [f"since {moment(filters.since)}"] if filters.since is not None else []
    words += [f"until {moment(filters.until)}"] if filters.until is not None else []
    return ", ".join(words)


def _target(output: str) -> Path:
    path = Path(os.path.realpath(output))
    if path.is_dir():
        raise UsageError(f"{output} is a folder; name a file in it, like {output.rstrip('/')}/report.html")
    if not path.parent.is_dir():
        raise UsageError(f"{output}: there is no folder {path.parent}")
    return path


def _write(path: Path, text: str, *, private: bool) -> None:
    try:
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            # A pipe or a device is written to, never replaced.
            path.write_text(text, encoding="utf-8")
            return
        write_atomic(path, text, mode=0o600 if private else None)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
