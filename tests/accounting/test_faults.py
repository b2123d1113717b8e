"""What records say of CUDA faults, and of whom one MPS server for all would have hit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurm_gpumem.accounting.faults import Faults, faults_among
from slurm_gpumem.accounting.types import Filters
from slurm_gpumem.formats.job_record import parse_job_record
from slurm_gpumem.node.records import hints
from slurm_gpumem.report.summary import summary_lines
from tests.accounting.job_records import DAY, NOON, UUID, opened, record, write

OTHER = UUID[:-1] + "9"


def put(root: Path, job_id: int, uid: int, start: float, end: float, **changes: Any) -> None:
    """A run's record; one that failed gets the hints that its node gives it."""
    changes = {"uid": 71_000 + uid, "user": f"usr{uid}", "start": NOON + start, "end": NOON + end, **changes}
    table = record(job_id, **changes)
    found = parse_job_record(json.dumps(table).encode())
    write(root / "spool", {**table, "hints": list(hints(found))})


def failed(*others: int, xid: int = 31, gpu: str = UUID) -> Any:
    """Of a run that an Xid ended, together with these jobs at its server."""
    event = {"kind": "xid", "gpu": gpu, "at": NOON, "with": list(others), "xid": xid}
    return {"exit_code": 1, "state": "FAILED", "events": [event]}


@pytest.fixture
def month(tmp_path: Path) -> Path:
    put(tmp_path, 1, 1, 0, 3600)
    put(tmp_path, 2, 2, 1000, 2000, **failed())
    # At the same server: two of one user; whose fault it was nobody can tell.
    put(tmp_path, 3, 3, 1000, 3000, **failed(4))
    put(tmp_path, 4, 3, 1000, 3001, **failed(3))
    put(tmp_path, 5, 4, 1000, 9000)
    # Not one server's to share: another GPU, a whole one, one that was over, one that had not begun.
    put(tmp_path, 6, 5, 0, 9000, gpus=[OTHER])
    put(tmp_path, 7, 5, 0, 9000, shards=None, limit_mib=None)
    put(tmp_path, 8, 5, 0, 1999)
    put(tmp_path, 9, 5, 3002, 4000)
    # The GPU's own fault would have ended them at any server, an error of Python none.
    put(tmp_path, 10, 6, 3500, 3600, **failed(xid=79))
    put(tmp_path, 11, 6, 3500, 3600, exit_code=1, state="FAILED")
    put(tmp_path, 12, 6, 31 * DAY - 60, 31 * DAY)
    return tmp_path


def test_who_was_there_when_a_fault_ended_a_run(month: Path) -> None:
    with opened(month) as store:
        found = faults_among(store.connection, "1", ())
        assert found == Faults(runs=11, gpus=2, days=pytest.approx(31), ended=3, together=2, beside=2)
        lines = summary_lines(store.summary(), (), "of all time", found)
        at = next(number for number, line in enumerate(lines) if line.startswith("CUDA faults"))
        assert [line[20:] for line in lines[at : at + 4]] == [
            "ended 3 of 11 shared runs on 2 GPUs in 31 days, 2 of them together at one MPS server",
            "one server for all users would have ended 2 more, of other users beside them",
            "not counted: faults that neither MPS nor the kernel logged",
            "what one server gains: gpumem what-if --mode per-user, then --mode shared",
        ]
        # Others that were there count whatever is asked for.
        only = store._sums.where(Filters(users=("usr2", "usr6")))
        chosen = faults_among(store.connection, *only)
        assert chosen is not None
        assert (chosen.runs, chosen.ended, chosen.beside) == (4, 1, 4)


def test_a_few_days_say_nothing_and_many_jobs_do(month: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (month / "spool" / "12.0.n1.json").unlink()
    with opened(month) as store:
        assert faults_among(store.connection, "1", ()) is None
        monkeypatch.setattr("slurm_gpumem.accounting.faults.LEAST_RUNS", 10)
        assert faults_among(store.connection, "1", ()) is not None


def test_who_sees_only_own_jobs_hears_nothing_of_others(month: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(month) as store:
        monkeypatch.setattr(store, "_everybody", False)
        assert store.faults() is None
        monkeypatch.setattr(store, "_everybody", True)
        assert store.faults() is not None
