"""Lines of `gpumem report --summary` that depend on what was measured."""

from __future__ import annotations

import pytest

from slurm_gpumem.accounting.types import JobTotals, Waster
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


@pytest.mark.parametrize(
    ("granted_s", "said"),
    [
        (36_000.0, "50 of 200 GiB-hours"),
        (360.0, "0.5 of 2.0 GiB-hours"),
        (10.0, "0.8 of 3.3 GiB-minutes"),
        (1.0, "0.1 of 0.3 GiB-minutes"),
    ],
)
def test_memory_that_short_jobs_kept_unused_is_no_row_of_zeros(granted_s: float, said: str) -> None:
    granted = 20 * 1024 * granted_s
    lines = summary_lines(JobTotals("", jobs=1), (Waster("usr1", 1, granted, granted / 4, 7),), "")
    assert any(line.split("usr1")[-1].lstrip().startswith(said) for line in lines), lines
