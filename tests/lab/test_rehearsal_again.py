"""The rehearsal on a real GPU against the model that the simulator uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.score.rehearsal import compared, main, predicted_ends, read_rehearsal
from slurm_gpumem.errors import UsageError
from slurm_gpumem.utilization.sets import WAYS


@pytest.mark.parametrize("way", WAYS)
def test_eight_real_jobs_train_as_long_as_predicted_within_a_tenth(way: str) -> None:
    real, said = compared(way)
    assert said.with_a_job == pytest.approx(real.with_a_job, rel=0.1)
    assert said.of_a_job == pytest.approx(real.of_a_job, rel=0.1)


def test_a_job_that_trains_alone_takes_its_own_time() -> None:
    first = read_rehearsal("shared")[0]
    later = first._replace(ready=first.ready + 2 * first.work)
    ends = predicted_ends([first, later], "shared")
    assert ends == pytest.approx([first.ready + first.work, later.ready + later.work])


def test_the_three_ways_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["seconds", *WAYS]


def test_a_folder_without_a_rehearsal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no rehearsal of shared"):
        read_rehearsal("shared", tmp_path)
