"""The line at login: short, of one's own jobs, silent where there is nothing to say."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_gpumem.cli.gpumem import main
from tests.accounting.job_records import record, write
from tests.cli.test_report import configure


def ended(job_id: int, **changes: Any) -> Any:
    start = time.time() - 7200
    return record(job_id, **{"uid": os.geteuid(), "start": start, "end": start + 3600, **changes})


def test_it_says_what_ones_own_jobs_did_lately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(tmp_path, monkeypatch)

    def line(*more: str) -> str:
        capsys.readouterr()
        assert main(["report", "--me", "--brief", *more]) == 0
        return capsys.readouterr().out

    assert line() == ""  # no index yet
    write(tmp_path / "spool", ended(1))
    write(tmp_path / "spool", ended(2, shards=None, limit_mib=None))
    write(tmp_path / "spool", ended(3, exit_code=1, state=None, verdict="oom"))
    write(tmp_path / "spool", ended(4, uid=71002, user="usr2"))
    write(tmp_path / "spool", ended(5, start=time.time() - 30 * 86_400, end=time.time() - 29 * 86_400))
    write(tmp_path / "spool", ended(6, end=None, exit_code=None, signal=None, state=None))
    assert line() == ""
    assert main(["report"]) == 0
    said = "3 GPU jobs in 7 days, 2 shared; 1.5 GPU-hours saved; 1 out of memory, 0 finished later"
    assert line() == f"gpumem: {said} (gpumem report)\n"
    index = tmp_path / "index" / "index.sqlite"
    index.write_bytes(index.read_bytes()[:5000])
    assert line() == ""
    assert main(["report", "--brief"]) == 2
    assert "gpumem report --me --brief" in capsys.readouterr().err
