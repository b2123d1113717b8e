"""Slurm's accounting: the shapes that versions write it in, and a real slurmdbd."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Dict

import pytest

from slurm_gpumem.accounting import sacct
from slurm_gpumem.slurm.client import SlurmMissingError
from slurm_gpumem.slurm.state.sacct import parse_runs
from tests.accounting.job_records import DAY, NOON, opened, record, write
from tests.support.fake_slurm import FakeSlurm


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
        assert sacct.apply(store.connection, [1], parse_runs(answer(job))) == 1
        (row,) = store.select()
        assert (row.account, row.job_name, row.wait_s, row.state) == ("vision", "train", 200.0, "COMPLETED")
        assert store.summary_by("account")[0].group == "vision"


@pytest.mark.parametrize(("ago", "joined"), [(5.0, 0), (7200.0, 1)])
def test_a_job_whose_start_has_not_reached_slurmdbd_is_asked_about_again(
    tmp_path: Path, ago: float, joined: int
) -> None:
    end = time.time() - ago
    write(tmp_path / "spool", record(1, state=None, start=end - 60, end=end))
    with opened(tmp_path) as store:
        assert sacct.apply(store.connection, [1], parse_runs(answer(old_job(name="allocation")))) == joined
        assert sacct.apply(store.connection, [1], parse_runs(answer(old_job()))) == 1
        assert [row.job_name for row in store.select()] == ["train"]


TASKS = [
    ({"job_id": 1, "limits": {}, "task": None, "task_id": 3}, (1, 3)),
    ({"job_id": 1, "task_id": {"set": True, "infinite": False, "number": 0}}, (1, 0)),
    ({"job_id": 0, "task_id": {"set": False, "infinite": False, "number": 0}}, (None, None)),
    ({"job_id": 1, "task_id": 4294967294}, (None, None)),
    (None, (None, None)),
    ("x", (None, None)),
]


@pytest.mark.parametrize(("array", "task"), TASKS)
def test_a_task_of_an_array_is_known_as_one(tmp_path: Path, array: Any, task: Any) -> None:
    write(tmp_path / "spool", record(7))
    with opened(tmp_path) as store:
        sacct.apply(store.connection, [7], parse_runs(answer(old_job(job_id=7, array=array))))
        (row,) = store.select()
        assert (row.array_job, row.array_task) == task
        assert row.name == ("7" if task[0] is None else f"{task[0]}_{task[1]}")


def test_what_slurm_says_does_not_change_whose_gpu_time_it_was(tmp_path: Path) -> None:
    for number in (1, 2):
        write(tmp_path / "spool", record(number))
    with opened(tmp_path) as store:
        for _ in range(2):
            sacct.apply(store.connection, [1, 2], parse_runs(answer(old_job(), old_job(job_id=2))))
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
        sacct.apply(store.connection, [1], parse_runs(answer(*runs)))
        (row,) = store.select()
        assert (row.wait_s, row.state, row.attempts) == (200.0, "TIMEOUT", 2)


@pytest.mark.parametrize(("state", "ooms"), [("FAILED", 1), ("REQUEUED", 0)])
def test_the_last_runs_success_is_not_that_of_a_run_before_it(tmp_path: Path, state: str, ooms: int) -> None:
    """The last run was on another node, whose records come later."""
    verdict = "oom" if ooms else None
    first = record(1, end=NOON + 60, state=state, exit_code=ooms, verdict=verdict)
    later = {"submission": NOON + 60, "eligible": NOON + 180, "start": NOON + 500, "end": NOON + 900}
    runs = [old_job(state={"current": "REQUEUED"}), old_job(time=later)]
    write(tmp_path / "spool", first)
    with opened(tmp_path) as store:
        sacct.apply(store.connection, [1], parse_runs(answer(*runs)))
        (row,) = store.select()
        assert (row.state, row.ooms, store.summary().ooms) == ("COMPLETED", ooms, ooms)
    (tmp_path / "spool" / "n2").mkdir()
    write(tmp_path / "spool" / "n2", record(1, node="n2", restarts=1, start=NOON + 500, end=NOON + 900))
    with opened(tmp_path) as store:
        (row,) = store.select()
        assert (row.state, row.attempts, row.ooms) == ("COMPLETED", 2, ooms)
        assert [run.state for run in store.detail(row).runs] == [state, "COMPLETED"]


def test_another_clusters_or_users_job_of_the_same_number_is_not_ours(tmp_path: Path) -> None:
    write(tmp_path / "spool", record(1))
    strangers = [old_job(cluster="other"), old_job(user="usr2")]
    with opened(tmp_path) as store:
        assert sacct.apply(store.connection, [1], parse_runs(answer(*strangers))) == 0
        assert [row.account for row in store.select()] == [""]


def test_the_task_epilogs_word_makes_a_failed_run_an_out_of_memory(tmp_path: Path) -> None:
    write(tmp_path / "spool", record(1, state=None, exit_code=1))
    comment = {"job": "mine gpumem/1:est=1 gpumem-end/1:run=0,saw=oom,by=torch", "administrator": ""}
    job = old_job(comment=comment, state={"current": "FAILED"})
    with opened(tmp_path) as store:
        sacct.apply(store.connection, [1], parse_runs(answer(job)))
        (row,) = store.select()
        assert (row.ooms, row.oom_limit_mib) == (1, 13_312)
        assert store.summary().oom_lost == 1


def test_a_record_that_is_read_again_keeps_what_slurm_said(tmp_path: Path) -> None:
    end = time.time() - 5
    write(tmp_path / "spool", record(1, start=end - 50, end=end, state=None))
    with opened(tmp_path) as store:
        sacct.apply(store.connection, [1], parse_runs(answer(old_job(state={"current": "TIMEOUT"}))))
    write(tmp_path / "spool", record(1, start=end - 50, end=end, state=None, peak_mib=12_000.0))
    with opened(tmp_path) as store:
        (row,) = store.select()
        assert (row.state, row.account, row.peak_mib) == ("TIMEOUT", "vision", 12_000)


def test_without_slurmdbd_the_index_says_why_and_does_not_ask_at_once_again(tmp_path: Path) -> None:
    slurm = FakeSlurm({"sacct": SlurmMissingError("sacct: not found on the PATH")})
    write(tmp_path / "spool", record(1))
    with opened(tmp_path) as store:
        for _ in range(3):
            assert sacct.join_slurm(store.connection, client=slurm) == 0
        assert store.freshness.slurm == "sacct: not found on the PATH"
    assert len(slurm.asked) == 1


def test_a_clock_that_was_set_back_does_not_keep_slurm_from_being_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, really = FakeSlurm({"sacct": SlurmMissingError("sacct: not found on the PATH")}), time.time
    write(tmp_path / "spool", record(1))
    with opened(tmp_path) as store:
        sacct.join_slurm(store.connection, client=slurm)
        monkeypatch.setattr(time, "time", lambda: really() - 10 * DAY)
        sacct.join_slurm(store.connection, client=slurm)
    assert len(slurm.asked) == 2


def test_jobs_that_ended_are_asked_about_by_number(tmp_path: Path) -> None:
    slurm = FakeSlurm({"sacct --json --duplicates -j 1": answer(new_job())})
    write(tmp_path / "spool", record(1, state=None))
    with opened(tmp_path) as store:
        assert sacct.join_slurm(store.connection, client=slurm) == 1
        assert [row.account for row in store.select()] == ["vision"]
