"""Sets of two users, scored by what was written down before their measurements were seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.score.pairs import (
    COEFFICIENTS,
    FROZEN,
    PREFIX,
    judged,
    lines,
    load_frozen,
    main,
    speeds_by_length,
)
from lab.utilization_runs import load_sets
from slurm_gpumem.errors import UsageError


def test_no_fit_reads_them() -> None:
    models = {job.partition("@")[0] for one in load_sets() for job in one.jobs}
    new = load_sets(prefix=PREFIX)
    assert len(new) == 7
    assert not models & {job.partition("@")[0] for one in new for job in one.jobs}


def test_each_mode_is_scored(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 4
    assert len(lines(each=True)) == 4 + 4 + 4 + 3


def test_other_coefficients_are_not_scored_as_those_that_were_frozen(tmp_path: Path) -> None:
    other = tmp_path / "interference.json"
    other.write_text(COEFFICIENTS.read_text().replace("0.89", "0.99"))
    with pytest.raises(UsageError, match="other coefficients"):
        load_frozen(FROZEN, other)


def test_by_length_a_job_of_longer_kernels_keeps_more_of_its_speed() -> None:
    frozen, model = load_frozen()
    one = next(one for one in load_sets(prefix=PREFIX) if len(one.jobs) == 2)
    alike = one._replace(solo=(one.solo[0], one.solo[0]))
    first, second = (job.rsplit("/", 3)[0] for job in one.jobs)
    known = {**frozen, "kernels": {first: 100, second: 1000}}
    long, short = speeds_by_length(alike, known)
    assert short < long <= 1
    assert all(found.predicted for items in judged([one], frozen, model).values() for found in items)
