"""Slurm's accounting: the shapes that versions write it in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.errors import SlurmError
from slurm_gpumem.slurm.state.sacct import (
    Limit,
    ask_coordinators,
    ask_limits,
    ask_runs,
    parse_limits,
    parse_runs,
)
from tests.accounting.test_sacct import answer, new_job, old_job
from tests.formats.any_json import JSON
from tests.support.fake_slurm import FakeSlurm


def test_the_runs_of_a_job_come_in_order_of_their_start() -> None:
    later = old_job(time={"submission": 5, "start": 9e9}, state={"current": "TIMEOUT"}, name="my job\x1b[2J")
    rows = ask_runs([1], FakeSlurm({"sacct --json -j 1": f"warning: x\n{answer(later, new_job())}"}))
    assert [row.state for row in rows] == ["COMPLETED", "TIMEOUT"]
    assert rows[1].name == "my job?[2J"


@given(JSON)
def test_whatever_sacct_writes_it_is_rows_or_an_error(value: Any) -> None:
    for text in (json.dumps(value), answer(value), answer({"job_id": 3, "time": value, "state": value})):
        try:
            rows = parse_runs(text)
        except SlurmError:
            continue
        assert all(row.job_id > 0 for row in rows)


@given(st.text(max_size=30))
def test_an_answer_that_is_no_json_is_an_error(text: str) -> None:
    with pytest.raises(SlurmError):
        parse_runs(text.replace("{", ""))


def test_coordinators_are_named_once_and_none_without_slurmdbd() -> None:
    slurm = FakeSlurm({"sacctmgr show account withcoord": "anna\nben,anna\n\n"})
    assert ask_coordinators(slurm) == ("anna", "ben")
    assert ask_coordinators(FakeSlurm({"sacctmgr": SlurmError("no slurmdbd")})) == ()


def test_limits_are_asked_of_qos_and_associations() -> None:
    slurm = FakeSlurm(
        {"sacctmgr show qos": "gpu|gres/gpu=8|||\n", "sacctmgr show assoc": "phys|anna||gres/gpu=1\n"}
    )
    assert [limit.entity for limit in ask_limits(slurm)] == ["qos gpu", "user anna account=phys"]


def test_limits_are_named_as_sacctmgr_sets_them() -> None:
    qos = "normal||||\ngpu|gres/gpu=8||gres/gpu=2|\n"
    associations = "root|||\nphys||gres/gpu=4|\nphys|anna||gres/gpu=1\n"
    assert parse_limits(qos, associations) == (
        Limit("qos gpu", "GrpTRES", "gres/gpu=8"),
        Limit("qos gpu", "MaxTRESPerUser", "gres/gpu=2"),
        Limit("account phys", "GrpTRES", "gres/gpu=4"),
        Limit("user anna account=phys", "MaxTRESPerJob", "gres/gpu=1"),
    )
