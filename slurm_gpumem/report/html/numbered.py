"""Users as numbers, for a page that is shown to others: "user 1" is the one with the most GPU-hours."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict

from slurm_gpumem.report.html.types import PageSource


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
