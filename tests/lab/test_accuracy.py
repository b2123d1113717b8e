"""`make accuracy`: the figures on runs whose answers can be worked out by hand."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List

import pytest

from lab.ground_truth import load_ground_truth, part_of
from lab.score.accuracy import Score, score
from lab.score.command import class_accuracy, class_lines
from lab.score.figures import figures
from slurm_gpumem.units import MIB

TEXT = (Path(__file__).parents[1] / "estimators" / "data" / "small_cnn.txt").read_text()
_ACCURACY = [sys.executable, "-m", "lab.score.command"]


def _row(number: int, **changes: Any) -> Dict[str, Any]:
    row = {
        "key": f"own/net{number}@32/b8/adam/fp32",
        "summary": "own/net@32",
        "model": f"own/net{number}",
        "source": "own",
        "family": "cnn",
        "batch": 8,
        "optimizer": "adam",
        "precision": "fp32",
        "toggles": {},
        "process_bytes": 1000 * MIB,
        "reserved_bytes": 240 * MIB,
        "allocated_bytes": 200 * MIB,
        "run": "r1",
    }
    return {**row, **changes}


def _write(folder: Path, rows: List[Dict[str, Any]]) -> Path:
    with gzip.open(folder / "rows-test.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    (folder / "summaries.jsonl").write_text(
        json.dumps({"summary": "own/net@32", "batch": 2, "torchsummary": TEXT, "torchinfo_error": "x"}) + "\n"
    )
    (folder / "about-r1.json").write_text(json.dumps({"run": "r1", "gpu": "NVIDIA H200", "gpu_mib": 143771}))
    return folder


def test_rows_become_jobs_on_the_gpu_of_their_session(tmp_path: Path) -> None:
    truth = load_ground_truth(_write(tmp_path, [_row(1, toggles={"channels_last": True, "accumulate": 4})]))
    run = truth.runs[0]
    assert run.gpu.entry == "h200"
    assert (run.process_mib, run.reserved_mib, run.allocated_mib) == (1000, 240, 200)
    assert (run.job.channels_last, run.job.grad_accumulation) == (True, 4)


def test_runs_that_cannot_be_compared_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [
        _row(1),
        _row(2, oom=True, error="CUDA out of memory"),
        _row(3, error="ValueError: x"),
        _row(4, spoiled=True),
        _row(5, toggles={"expandable_segments": True}),
        _row(6, summary="own/other@32"),
        _row(7, toggles={"expandable_segments": False}),
    ]
    truth = load_ground_truth(_write(tmp_path, rows))
    assert [run.row["model"] for run in truth.runs] == ["own/net1", "own/net7"]
    assert truth.left_out == {
        "out of memory": 1,
        "failed": 1,
        "disturbed": 1,
        "toggle expandable_segments": 1,
        "no summary text": 1,
    }


def test_without_the_drivers_count_the_context_is_added_to_what_was_reserved(tmp_path: Path) -> None:
    truth = load_ground_truth(_write(tmp_path, [_row(1, process_bytes=None)]))
    scores, failures = score(truth, ["deepspeed"])
    assert failures == []
    # small_cnn has convolutions and a linear layer: the whole context of the H200.
    assert scores[0].real_mib == 240 + truth.runs[0].gpu.context_mib


def _score(real: int, peak: int, request: int, model: str = "m") -> Score:
    run = type("Run", (), {"row": {"model": model, "family": "f"}, "key": model})()
    return Score(run, "e", "torchinfo", real, peak, request)


def test_figures_worked_by_hand() -> None:
    scores = [
        _score(1000, 1100, 1200),  # +10 %, request +20 %, 1 shard needed, 2 asked
        _score(1000, 900, 950),  # -10 %, under the request, same shard
        _score(2000, 2400, 2400),  # +20 %, 2 needed, 3 asked
        _score(5000, 2500, 3000),  # -50 %, 5 needed, 3 asked
        _score(4000, 4000, 4096),  # exact
    ]
    f = figures(scores)
    assert f.count == 5
    assert f.median_error == pytest.approx(0.1)
    # 0, 0.1, 0.1, 0.2, 0.5: nine tenths of the way from the first to the last is 0.2 + 0.6 x 0.3.
    assert f.p90_error == pytest.approx(0.38)
    assert (f.under_peak, f.under_request) == (0.4, 0.4)
    assert f.over_reservation == pytest.approx(0.024)
    assert f.capacity == pytest.approx((1200 + 950 + 2400 + 3000 + 4096) / 13000)
    assert (f.over_half, f.over_twice, f.under_unwarned) == (0.0, 0.0, 0.4)
    wide = [_score(1000, 1000, 1600), _score(1000, 1000, 2100), replace(_score(1000, 900, 950), warned=True)]
    g = figures(wide)
    assert (g.over_half, g.over_twice) == pytest.approx((2 / 3, 1 / 3))
    assert (g.under_request, g.under_unwarned) == pytest.approx((1 / 3, 0.0))
    assert (f.shards_exact, f.shards_within_one, f.shards_too_few) == (0.4, 0.8, 0.2)


def test_a_text_that_is_no_summary_is_a_failure_not_a_crash(tmp_path: Path) -> None:
    _write(tmp_path, [_row(1), _row(2, summary="own/bad@1")])
    with open(tmp_path / "summaries.jsonl", "a") as file:
        file.write(json.dumps({"summary": "own/bad@1", "torchinfo": "import torch"}) + "\n")
    scores, failures = score(load_ground_truth(tmp_path), ["faketensor"])
    assert (len(scores), len(failures)) == (1, 1)


def test_the_fullest_text_is_scored_unless_others_are_asked_for(tmp_path: Path) -> None:
    _write(tmp_path, [_row(1)])
    both = {"summary": "own/net@32", "torchsummary": TEXT, "torchinfo_full": TEXT}
    (tmp_path / "summaries.jsonl").write_text(json.dumps(both) + "\n")
    truth = load_ground_truth(tmp_path)
    assert [s.format for s in score(truth, ["faketensor"])[0]] == ["torchinfo_full"]
    assert [s.format for s in score(truth, ["faketensor"], ["torchsummary"])[0]] == ["torchsummary"]
    assert score(truth, ["faketensor"], ["print"]) == ([], [])


# -- The command ---------------------------------------------------------------------------------


def _run(*args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    return subprocess.run([*_ACCURACY, *args], capture_output=True, text=True, env=environment, check=False)


def test_the_command_prints_a_table_per_field_and_the_worst_runs(tmp_path: Path) -> None:
    _write(tmp_path, [_row(1), _row(2, family="mlp", process_bytes=5000 * MIB)])
    done = _run("--data", str(tmp_path), "--estimator", "faketensor")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 runs of 2 models\n")
    heads = [line.split()[0] for line in done.stdout.splitlines() if " estimator " in line]
    assert heads == ["estimator", "code", "family", "precision", "gpu"]
    assert "farthest off (faketensor)" in done.stdout
    assert "own/net2@32/b8/adam/fp32" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 110


def test_json_has_the_same_groups_and_where_narrows_them(tmp_path: Path) -> None:
    _write(tmp_path, [_row(1), _row(2, family="mlp")])
    result = json.loads(
        _run("--data", str(tmp_path), "--by", "family", "--where", "family=mlp", "--json").stdout
    )
    assert result["schema"] == "gpumem-accuracy/1"
    assert result["runs"] == 1
    assert {(g["by"], g["group"]) for g in result["groups"]} == {("all", "all"), ("family", "mlp")}


def test_a_model_is_in_one_part_for_good() -> None:
    assert part_of("torchvision/resnet50") == "development"
    assert part_of("torchvision/vgg16") == "hold-out"


def _scores(folder: Path, *pairs: tuple[int, int]) -> list[Score]:
    run = load_ground_truth(_write(folder, [_row(1, family="synthetic-mlp")])).runs[0]
    return [Score(run, "structural", "torchsummary", real, peak, peak) for real, peak in pairs]


def test_a_peak_counts_only_in_the_class_of_the_measured_one(tmp_path: Path) -> None:
    scores = _scores(tmp_path, (1000, 1023), (1000, 1024), (3000, 2100), (2047, 2049))
    assert class_accuracy(scores, 1) == 0.5
    assert class_accuracy(scores, 2) == 0.75


def test_the_table_has_the_families_that_were_scored_and_is_away_without_any(tmp_path: Path) -> None:
    lines = class_lines(_scores(tmp_path, (1000, 1023), (1000, 2024)), ["corrected", "structural"])
    assert [line.split() for line in lines[1:]] == [
        ["estimator", "mlp,", "1", "GiB", "mlp,", "2", "GiB"],
        ["structural", "0.500", "1.000"],
    ]
    assert class_lines([], ["structural"]) == []
