"""The device script for ranks: on the CPU it runs the same trainings, and goes on where it was cut off."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from lab.ranks import measure
from lab.ranks.measure import main, runs


def test_a_run_that_was_cut_off_is_measured_again_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_RANKS", (2, 8))
    plan, out = tmp_path / "plan.jsonl", tmp_path / "rows.jsonl"
    assert main(["--out", str(plan), "--compute", "--tiny", "--only", "fsdp,mixed"]) == 0
    planned = [json.loads(line) for line in plan.read_text().splitlines()]
    assert all(row["computed_reserved_mib"] >= row["computed_allocated_mib"] > 0 for row in planned)
    command = [sys.executable, "-m", "lab.ranks.measure", "--device", "cpu"]
    command += ["--plan", str(plan), "--out", str(out)]
    subprocess.run(command, check=True, timeout=300)
    lines = out.read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["run"]["ranks"] for row in rows] == [2, 8]
    assert not any(row["run_code"] for row in rows), rows
    assert all(row["computed_reserved_mib"] for row in rows)
    out.write_text("\n".join([lines[0], lines[1][:40], ""]))
    subprocess.run(command, check=True, timeout=300)
    assert [json.loads(line)["run"]["ranks"] for line in out.read_text().splitlines()[-1:]] == [8]


def test_the_score_is_the_error_of_reserved_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.jsonl"
    run = next(runs())
    made = [
        {"run": run, "computed_reserved_mib": 103.0, "reserved_bytes": 100 << 20, "run_code": 0},
        {"run": run, "computed_reserved_mib": 101.0, "reserved_bytes": 100 << 20, "run_code": 0},
        {"run": run, "computed_reserved_mib": 9.0, "reserved_bytes": 5 << 20, "run_code": 1},
    ]
    out.write_text("".join(json.dumps(row) + "\n" for row in made))
    assert main(["--out", str(out), "--score"]) == 0
    printed = capsys.readouterr().out
    assert "ddp                              2    2.0 %" in printed
    assert "1 runs failed" in printed
    bytes_of = {"process_bytes": 200 << 20, "allocated_bytes": 90 << 20}
    now = {"computed_reserved_mib": 100.5, "computed_allocated_mib": 90.9}
    made = [{**row, **bytes_of, "now": {**now, "request_mib": at}} for row, at in zip(made, (199, 201))]
    again = tmp_path / "again.jsonl"
    again.write_text("".join(json.dumps(row) + "\n" for row in made))
    assert main(["--out", str(again), "--score"]) == 0
    printed = capsys.readouterr().out
    assert "0.5 %    0.5 %          1" in printed
    assert [line.split()[-4:] for line in printed.splitlines() if "allocated" in line] == [["1.0", "%"] * 2]
    assert main(["--out", str(tmp_path / "none.jsonl"), "--score"]) == 1
