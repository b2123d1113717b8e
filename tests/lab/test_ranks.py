"""The device script for ranks: on the CPU it runs the same trainings, and goes on where it was cut off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from slurm_gpumem.lab.ranks import measure
from slurm_gpumem.lab.ranks.measure import main, runs


def test_a_run_that_was_cut_off_is_measured_again_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_RANKS", (2, 8))
    out = tmp_path / "rows.jsonl"
    words = ["--out", str(out), "--tiny", "--device", "cpu", "--only", "fsdp,mixed"]
    assert main(words) == 0
    lines = out.read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["run"]["ranks"] for row in rows] == [2, 8]
    assert not any(row["run_code"] for row in rows), rows
    assert all(row["computed_reserved_mib"] >= row["computed_allocated_mib"] > 0 for row in rows)
    out.write_text("\n".join([lines[0], lines[1][:40], ""]))
    assert main(words) == 0
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
    assert main(["--out", str(tmp_path / "none.jsonl"), "--score"]) == 1
