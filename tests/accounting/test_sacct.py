"""Slurm's accounting: the shapes that versions write it in, and a real slurmdbd."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.accounting import sacct
from slurm_gpumem.errors import SlurmError
from slurm_gpumem.slurm.client import SlurmMissingError
from tests.accounting.job_records import NOON, opened, record, write
from tests.formats.any_json import JSON


def old_job(**changes: Any) -> Dict[str, Any]:
    """As 22.05 writes it."""
    job = {
        "job_id": 1,
        "name": "train",
        "user": "usr1",
        "account": "vision",
        "cluster": "site",
        "partition": "gpu",
        "state": {"current": "COMPLETED", "reason": "None"},
        "time": {"submission": NOON - 300, "eligible": NOON - 200, "start": NOON, "end": NOON + 3600},
    }
    return {**job, **changes}


def new_job(**changes: Any) -> Dict[str, Any]:
    """As 24.11 and later write it."""
    number = {"set": True, "infinite": False, "number": int(NOON)}
    times = {
        "submission": int(NOON - 300),
        "eligible": {**number, "number": int(NOON - 200)},
        "start": number,
    }
    return old_job(state={"current": ["COMPLETED"], "reason": "None"}, time=times, **changes)


def answer(*jobs: Any) -> str:
    return json.dumps({"meta": {}, "jobs": list(jobs), "errors": []})


@pytest.mark.parametrize("job", [old_job(), new_job()], ids=["22.05", "24.11"])
def test_what_slurm_knows_is_joined(tmp_path: Path, job: Any) -> None:
    write(tmp_path / "spool", record(1, state=None))
    with opened(tmp_path) as store:
        assert sacct.apply(store.connection, [1], sacct.parse(answer(job))) == 1
        (row,) = store.select()
        assert (row.account, row.job_name, row.wait_s, row.state) == ("vision", "train", 200.0, "COMPLETED")
        assert store.summary_by("account")[0].group == "vision"


def test_what_slurm_says_does_not_change_whose_gpu_time_it_was(tmp_path: Path) -> None:
    for number in (1, 2):
        write(tmp_path / "spool", record(number))
    with opened(tmp_path) as store:
        for _ in range(2):
            sacct.apply(store.connection, [1, 2], sacct.parse(answer(old_job(), old_job(job_id=2))))
            assert [row.used_s for row in store.select()] == [1800.0, 1800.0]
        assert (store.summary().used_s, store.summary_by("account")[0].used_s) == (3600.0, 3600.0)


def test_the_wait_is_the_first_runs_and_the_state_the_last_ones(tmp_path: Path) -> None:
    write(tmp_path / "spool", record(1, end=NOON + 60, state=None, exit_code=1))
    write(tmp_path / "spool", record(1, restarts=1, start=NOON + 500, end=NOON + 900, state=None))
    later = {"submission": NOON + 60, "eligible": NOON + 180, "start": NOON + 500, "end": NOON + 900}
    runs = [
        old_job(state={"current": "TIMEOUT"}, time=later),
        old_job(state={"current": "REQUEUED"}),
    ]
    with opened(tmp_path) as store:
        sacct.apply(store.connection, [1], sacct.parse(answer(*runs)))
        (row,) = store.select()
        assert (row.wait_s, row.state, row.attempts) == (200.0, "TIMEOUT", 2)


def test_another_clusters_or_users_job_of_the_same_number_is_not_ours(tmp_path: Path) -> None:
    write(tmp_path / "spool", record(1))
    strangers = [old_job(cluster="other"), old_job(user="usr2")]
    with opened(tmp_path) as store:
        assert sacct.apply(store.connection, [1], sacct.parse(answer(*strangers))) == 0
        assert [row.account for row in store.select()] == [""]


def test_the_task_epilogs_word_makes_a_failed_run_an_out_of_memory(tmp_path: Path) -> None:
    write(tmp_path / "spool", record(1, state=None, exit_code=1))
    comment = {"job": "mine gpumem/1:est=1 gpumem-end/1:run=0,saw=oom,by=torch", "administrator": ""}
    job = old_job(comment=comment, state={"current": "FAILED"})
    with opened(tmp_path) as store:
        sacct.apply(store.connection, [1], sacct.parse(answer(job)))
        (row,) = store.select()
        assert (row.ooms, row.oom_limit_mib) == (1, 13_312)
        assert store.summary().oom_lost == 1


def test_a_record_that_is_read_again_keeps_what_slurm_said(tmp_path: Path) -> None:
    import time

    end = time.time() - 5
    write(tmp_path / "spool", record(1, start=end - 50, end=end, state=None))
    with opened(tmp_path) as store:
        sacct.apply(store.connection, [1], sacct.parse(answer(old_job(state={"current": "TIMEOUT"}))))
    write(tmp_path / "spool", record(1, start=end - 50, end=end, state=None, peak_mib=12_000.0))
    with opened(tmp_path) as store:
        (row,) = store.select()
        assert (row.state, row.account, row.peak_mib) == ("TIMEOUT", "vision", 12_000)


@given(JSON)
def test_whatever_sacct_writes_it_is_rows_or_an_error(value: Any) -> None:
    for text in (json.dumps(value), answer(value), answer({"job_id": 3, "time": value, "state": value})):
        try:
            rows = sacct.parse(text)
        except SlurmError:
            continue
        assert all(row.job_id > 0 for row in rows)


@given(st.text(max_size=30))
def test_an_answer_that_is_no_json_is_an_error(text: str) -> None:
    with pytest.raises(SlurmError):
        sacct.parse(text.replace("{", ""))


def test_without_slurmdbd_the_index_says_why_and_does_not_ask_at_once_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def none(argv: Any, **_: Any) -> str:
        asked.append(argv)
        raise SlurmMissingError("sacct: not found on the PATH")

    monkeypatch.setattr(sacct, "run", none)
    write(tmp_path / "spool", record(1))
    with opened(tmp_path) as store:
        for _ in range(3):
            assert sacct.join_slurm(store.connection) == 0
        assert store.freshness.slurm == "sacct: not found on the PATH"
    assert len(asked) == 1
