from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.simulate.__main__ import main
from lab.simulate.policies import POLICIES


def _trace(tmp_path: Path) -> str:
    path = tmp_path / "t.csv"
    rows = [f"{10 * n},600,{4000 + 100 * n},0.3,{5000 + 100 * n}" for n in range(12)]
    path.write_text("\n".join(["arrival_s,work_s,memory_mib,sm_active,estimate_text", *rows]) + "\n")
    return str(path)


def test_a_table_compares_policies_on_one_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([_trace(tmp_path), "--gpus", "2xa100-40gb", "--estimator", "text"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "12 jobs on 2 × a100 (40 GiB)"
    assert [line.split("  ")[0] for line in lines[2:]] == ["exclusive", "slurm-pack text"]


def test_ranges_over_seeds_stand_below_their_means(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([_trace(tmp_path), "--policy", "exclusive,lug", "--seeds", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert len({len(line) for line in lines}) == 1
    assert "–" in lines[2]


def test_every_policy_estimator_and_mode_can_be_combined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [_trace(tmp_path), "--policy", "all", "--estimator", "oracle,none,text,remembered"]
    assert main([*argv, "--mode", "mps,timeslice,mig", "--mig", "1x3g+3g", "--seeds", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["policy"] for row in found["rows"]} == set(POLICIES)
    shared = [policy for policy in POLICIES.values() if not policy.whole]
    instances = sum(policy.granted for policy in shared)
    assert len(found["rows"]) == len(shared) * 4 * 2 + instances * 4 + 2
    assert all(len(row["runs"]) == 2 and row["runs"][0]["ended"] == 12 for row in found["rows"])


def test_jobs_that_fit_nowhere_are_mentioned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,work_s,memory_mib\n0,10,2000\n0,10,90000\n")
    assert main([str(path)]) == 0
    assert "1 job can never run here" in capsys.readouterr().err


def test_generated_jobs_are_written_as_a_trace_that_can_be_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "made.csv"
    assert main(["--generate", "50", "--gpus", "2x8xa100-40gb", "--write", str(path)]) == 0
    assert main([str(path), "--gpus", "2x8xa100-40gb", "--estimator", "text"]) == 0
    assert "50 jobs on 16 × a100" in capsys.readouterr().out
