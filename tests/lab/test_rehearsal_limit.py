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


def test_long_jobs_gain_three_quarters_of_what_an_ideal_packer_does(report: Any) -> None:
    found = report.limited("limit-shared-long", rows(report, ROWS), rows(report, REHEARSAL))
    assert (found.jobs, found.cut, found.failed) == (12, 4, 0)  # one of the four waits for its second run
    assert max(found.slow) < 1.5
    assert (found.work - found.busy) / (found.work - found.ideal) == pytest.approx(0.75, abs=0.03)
    assert found.energy < 0.9 * found.serial_energy
    assert found.reported == pytest.approx(found.saved, rel=0.05)


def test_the_report_of_that_run_is_within_5_percent_of_the_truth(report: Any) -> None:
    found = report.limited("limit-shared", rows(report, ROWS), rows(report, REHEARSAL))
    assert found.reported == pytest.approx(found.saved_as_was, rel=0.05)


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


def test_the_page_says_what_the_rows_say(report: Any, tmp_path: Path) -> None:
    report.write_limit_report(ROWS, tmp_path / "page.md", REHEARSAL)
    told, committed = (
        [line for line in path.read_text().splitlines() if "ideal packer" not in line]
        for path in (tmp_path / "page.md", ROWS.with_suffix(".md"))
    )
    assert told == committed, "run lab/gpu/rehearsal.py --mode report (lab/docs/rehearsal-limit)"


def test_with_a_server_for_each_user_the_report_is_near_the_truth(report: Any) -> None:
    found = report.limited("limit-per-user", rows(report, ROWS), rows(report, REHEARSAL))
    assert (found.jobs, found.cut, found.failed) == (8, 1, 0)
    assert max(found.slow) < found.limit
    assert found.reported == pytest.approx(found.saved_as_was, abs=0.04)
