from __future__ import annotations

from pathlib import Path

import pytest

from lab.simulate.trace_file import read_trace, write_trace
from slurm_gpumem.errors import UsageError
from tests.simulation.jobs import HEAVY, job


def test_a_trace_that_was_written_is_read_as_it_was(tmp_path: Path) -> None:
    jobs = [
        job(0, 0.0, 12.5, 4096, startup_mib=600, startup_s=30.0, estimates={"text": 5000, "horus": 9000}),
        job(1, 7.0, 100.0, 9000, load=HEAVY, gpus=2, startup_mib=600, startup_s=30.0, user="b", name="n,1",
            partition="p", limit=3600.0, priority=3),
    ]  # fmt: skip
    path = tmp_path / "t.csv"
    write_trace(path, jobs, ["a comment"])
    assert read_trace(path) == jobs


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no job in it"),
        ("# only a comment\n", "no job in it"),
        ("a,b\n1,2\n", "line 1: the header has no column arrival_s, work_s, memory_mib"),
        ("arrival_s,work_s,memory_mib\n0,1\n", "line 2 has 2 cells, the header 3"),
        ("arrival_s,work_s,memory_mib\n0,x,3\n", "line 2: work_s is 'x', not a number"),
        ("arrival_s,work_s,memory_mib\n0,-4,3\n", "line 2: work_s is '-4'"),
        ("arrival_s,work_s,memory_mib\n0,nan,3\n", "line 2: work_s is 'nan'"),
        ("arrival_s,work_s,memory_mib,gpus\n0,4,3,0\n", "must be more than 0"),
        ("arrival_s,work_s,memory_mib,sm_active\n0,4,3,40\n", "shares from 0 to 1, not percent"),
        ("arrival_s,work_s,memory_mib,colour\n0,4,3,red\n", "unknown column 'colour'"),
    ],
)
def test_a_wrong_trace_is_refused_with_the_line_and_the_reason(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "t"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_trace(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
