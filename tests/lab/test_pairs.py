"""Sets of two users, scored by what was written down before their measurements were seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.score.pairs import COEFFICIENTS, FROZEN, PREFIX, lines, load_frozen
from lab.utilization_runs import load_sets
from slurm_gpumem.errors import UsageError


def test_no_fit_reads_them() -> None:
    models = {job.partition("@")[0] for one in load_sets() for job in one.jobs}
    new = load_sets(prefix=PREFIX)
    assert len(new) == 7
    assert not models & {job.partition("@")[0] for one in new for job in one.jobs}


def test_each_mode_is_scored() -> None:
    assert [line.split(",")[0] for line in lines()[1:]] == ["shared", "per-user"]


def test_other_coefficients_are_not_scored_as_those_that_were_frozen(tmp_path: Path) -> None:
    other = tmp_path / "interference.json"
    other.write_text(COEFFICIENTS.read_text().replace("0.89", "0.99"))
    with pytest.raises(UsageError, match="other coefficients"):
        load_frozen(FROZEN, other)
