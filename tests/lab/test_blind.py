"""The score of blind sets: figures worked out by hand, from real texts through the real estimate."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, Dict

import pytest

from lab.score.blind import answers, lines, main, memory_cells, utilization_cells
from slurm_gpumem import estimate
from slurm_gpumem.units import MIB

TEXT = (Path(__file__).parents[2] / "docs" / "examples" / "resnet50.txt").read_text()


def _data(folder: Path, need_mib: int, **changes: Any) -> Path:
    row: Dict[str, Any] = {
        "key": "own/net@32/b8/adam/fp32",
        "summary": "own/net@32",
        "model": "own/net",
        "source": "own",
        "family": "cnn",
        "batch": 8,
        "optimizer": "adam",
        "precision": "fp32",
        "toggles": {},
        "process_bytes": need_mib * MIB,
        "reserved_bytes": 240 * MIB,
        "run": "r1",
        **changes,
    }
    with gzip.open(folder / "rows-test.jsonl.gz", "wt") as file:
        file.write(json.dumps(row) + "\n")
    texts = {"summary": "own/net@32", "batch": 2, "torchsummary": TEXT, "print": "no model at all"}
    (folder / "summaries.jsonl").write_text(json.dumps(texts) + "\n")
    (folder / "about-r1.json").write_text(json.dumps({"run": "r1", "gpu": "NVIDIA H200", "gpu_mib": 143771}))
    return folder


def test_answers_are_the_users_own_and_a_text_without_a_model_counts_as_failed(tmp_path: Path) -> None:
    found = answers(_data(tmp_path, 1000), None)
    by_kind = {one.kind: one for one in found}
    made = estimate(TEXT, batch_size=8, optimizer="adam", precision="fp32", gpu="h200")
    answer = by_kind["torchsummary"].made
    assert answer is not None
    assert (answer.peak_mib, answer.request_mib) == (made.peak_mib, made.request_mib)
    assert by_kind["print"].made is None
    assert by_kind["print"].error
    assert any("no answer" in line for line in lines(found))


def test_a_request_below_the_need_is_counted_and_named(tmp_path: Path) -> None:
    found = [one for one in answers(_data(tmp_path, 100_000), None) if one.kind == "torchsummary"]
    assert " 100.0 % (" in memory_cells(found)
    assert any("own/net@32/b8/adam/fp32" in line for line in lines(found))


def test_sm_activity_is_scored_in_points_and_by_its_interval(tmp_path: Path) -> None:
    made = estimate(TEXT, batch_size=8, optimizer="adam", precision="fp32", gpu="h200").utilization
    assert made is not None
    measured = {"sm_active": made.sm_active, "step_seconds": made.step_seconds}
    found = answers(_data(tmp_path, 1000, utilization=measured), None)
    cells = utilization_cells([one for one in found if one.kind == "torchsummary"])
    assert cells.split() == ["1", "0", "0.0", "points", "100", "%", "0", "%", "100", "%"]


def test_runs_that_were_not_traced_are_failures_of_the_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    folder = tmp_path / "data"
    folder.mkdir()
    assert main([str(_data(folder, 1000)), "--traces", str(tmp_path)]) == 0
    assert "not traced" in capsys.readouterr().out
