"""The rehearsal on a real GPU under the slowdown limit: what its page says follows from its rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from lab.places import REHEARSAL

SCRIPTS = Path(__file__).resolve().parents[2] / "lab" / "gpu"
ROWS = REHEARSAL.with_name("rehearsal-limit")


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import rehearsal_limit
    import rehearsal_report

    monkeypatch.setattr(rehearsal_report, "_ORDERS", 4)
    yield rehearsal_limit
    for name in ("rehearsal_limit", "rehearsal_report", "rehearsal_calm"):
        sys.modules.pop(name)


def rows(report: Any, folder: Path) -> Any:
    return {path.stem: report.read_rows(path) for path in sorted(folder.glob("*.jsonl"))}


def test_no_job_took_longer_than_the_limit_and_none_was_lost(report: Any) -> None:
    found = report.limited("limit-shared", rows(report, ROWS), rows(report, REHEARSAL))
    assert (found.jobs, found.cut, found.failed) == (16, 0, 0)
    assert 1.5 < max(found.slow) < found.limit
    assert found.busy < 0.8 * found.work
    assert found.energy < 0.9 * found.serial_energy


def test_the_ideal_packer_keeps_the_limit(report: Any) -> None:
    job = {"kind": "a", "shards": 40, "steps": 10}
    rehearsal = sys.modules["rehearsal_report"]
    solo, extra = {"a": rehearsal.Solo(1.0, None, None)}, {("a", "a"): 0.6}
    jobs = [dict(job) for _ in range(3)]
    assert report.ideal_s(jobs, solo, extra, 1.5) == pytest.approx(30)
    assert report.ideal_s(jobs, solo, extra, 2.0) == pytest.approx(26)
    assert report.ideal_s(jobs, solo, extra) == pytest.approx(22)


def test_time_in_which_a_job_starts_up_is_left_out(report: Any) -> None:
    trains = {"kind": "a", "ready": 0.0, "done": 10.0, "ends": [float(end) for end in range(1, 11)]}
    rate, seconds = report.calm_rate([trains], {"a": 2.0}, [(4.0, 8.0)], 9.0)
    assert seconds == pytest.approx(5.0)
    assert rate == pytest.approx(6 / 2 / 5)
