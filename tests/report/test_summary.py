"""Lines of `gpumem report --summary` that depend on what was measured."""

from __future__ import annotations

import pytest

from slurm_gpumem.accounting.types import JobTotals
from slurm_gpumem.report.summary import summary_lines


@pytest.mark.parametrize(
    ("used", "said"),
    [
        (1800.0, "CPUs                50% of those held were used (0.50 of 1.0 CPU-hours)"),
        (
            3996.0,
            "CPUs                1.1 CPU-hours used where 1.0 were held: jobs are not kept to their CPUs",
        ),
    ],
)
def test_more_cpus_than_were_held_are_no_share_of_them(used: float, said: str) -> None:
    total = JobTotals("", jobs=2, cpu_held_s=3600.0, cpu_used_s=used)
    assert said in summary_lines(total, (), "")
