"""The collector on the CPU: rows of real training steps, resumed, cut off, never lost."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

pytest.importorskip("torch", reason="training needs torch")

from lab.collect import memory as collect
from lab.collect.sample import Job, load_jobs

MODELS = ["own/lenet", "own/plain-cnn-small", "own/cifar-resnet20"]
CONFIG = """\
seed = 1
max_mib = 1000
max_step_seconds = 1
steps = 2
[optimizers]
adam = 1
[precisions]
fp32 = 1
[[toggle]]
models = {models}
batch = 2
toggles = []
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "three.toml"
    path.write_text(CONFIG.format(models=json.dumps(MODELS)))
    return path


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    """The collector freezes its garbage collector; these tests run it in their own process."""
    yield
    gc.unfreeze()


def _collect(config: Path, *options: str) -> int:
    out = str(config.parent / "out")
    return collect.main([str(config), "--out", out, "--device", "cpu", "--jobs", "2", *options])


def _rows(config: Path) -> List[Dict[str, Any]]:
    text = (config.parent / "out" / "rows-three-1of1.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def _fine(job: Job, device: str) -> Dict[str, Any]:
    return {"steps": 1}


def test_hand_written_models_train_and_leave_a_row_each(config: Path) -> None:
    # A process of its own: a fork of one whose torch has already used its threads would hang.
    command = [sys.executable, "-m", "lab.collect.memory", str(config)]
    options = ["--out", str(config.parent / "out"), "--device", "cpu", "--jobs", "2"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row["model"]: row for row in _rows(config)}
    assert sorted(rows) == sorted(MODELS)
    for row in rows.values():
        assert "error" not in row
        assert row["steps"] == 2
        assert row["parameters"] > 10_000
        assert isinstance(row["loss"], float)
        assert row["optimizer_tensors"] > 0
    assert rows["own/lenet"]["inputs"]["0"] == "float32 2x1x28x28"
    (about,) = (config.parent / "out").glob("about-*.json")
    said = json.loads(about.read_text())
    assert {row["run"] for row in rows.values()} == {said["run"]}
    assert said["versions"]["torch"]
    assert said["command"] == "three.toml --device cpu --jobs 2"
    assert "3 jobs to run, 0 done before" in done.stdout


def test_a_second_run_skips_what_is_done(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(collect, "measure", _fine)
    _collect(config, "--max-jobs", "1")
    _collect(config)
    assert "2 jobs to run, 1 done before" in capsys.readouterr().out
    assert len({row["key"] for row in _rows(config)}) == len(_rows(config)) == 3


def test_rows_of_other_files_are_skipped_too(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "measure", _fine)
    earlier = config.parent / "earlier.jsonl"
    done, spoiled, _ = load_jobs(config)
    lines = [{"key": done.key}, {"key": spoiled.key, "spoiled": True}]
    earlier.write_text("".join(json.dumps(line) + "\n" for line in lines))
    _collect(config, "--skip", str(earlier))
    keys = [row["key"] for row in _rows(config)]
    assert done.key not in keys
    assert spoiled.key in keys


def test_failed_rows_are_run_again_only_when_asked_for(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(collect, "measure", lambda job, device: {"error": "odd"})
    _collect(config)
    _collect(config)
    assert "0 jobs to run, 3 done before" in capsys.readouterr().out
    monkeypatch.setattr(collect, "measure", _fine)
    _collect(config, "--retry-failed")
    assert [row.get("error") for row in _rows(config)] == ["odd"] * 3 + [None] * 3


def test_a_row_that_was_cut_off_does_not_spoil_the_next(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "measure", _fine)
    _collect(config, "--max-jobs", "2")
    path = config.parent / "out" / "rows-three-1of1.jsonl"
    path.write_text(path.read_text()[:-20])
    _collect(config)
    lines = path.read_text().splitlines()
    assert len(lines) == 4
    assert {json.loads(lines[i])["model"] for i in (0, 2, 3)} == set(MODELS)


def test_no_job_starts_after_the_time_is_over(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(job: Job, device: str) -> Dict[str, Any]:
        time.sleep(0.6)
        return {}

    monkeypatch.setattr(collect, "measure", slow)
    _collect(config, "--jobs", "1", "--limit-seconds", "0.3")
    assert len(_rows(config)) <= 1
    _collect(config)
    assert len(_rows(config)) == 3


def test_rows_are_in_the_file_before_the_run_ends(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = config.parent / "out" / "rows-three-1of1.jsonl"
    monkeypatch.setattr(
        collect, "measure", lambda job, device: {"written": len(path.read_text().splitlines())}
    )
    _collect(config, "--jobs", "1")
    assert [row["written"] for row in _rows(config)] == [0, 1, 2]


@pytest.mark.parametrize("error", ["out of memory", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED"])
def test_a_job_that_lacked_memory_among_others_is_run_again_alone(
    error: str, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = config.parent / "tried"

    def crowded(job: Job, device: str) -> Dict[str, Any]:
        if job.entry.id == "own/lenet" and not tried.exists():
            tried.touch()
            return {"error": error}
        return {"steps": 5}

    monkeypatch.setattr(collect, "measure", crowded)
    _collect(config)
    (row,) = [row for row in _rows(config) if row["model"] == "own/lenet"]
    assert row["alone"] is True
    assert row["steps"] == 5
    assert "error" not in row


def test_a_job_that_hangs_becomes_an_error_and_the_rest_goes_on(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(job: Job, device: str) -> Dict[str, Any]:
        time.sleep(600 if job.entry.id == "own/lenet" else 0)
        return {}

    monkeypatch.setattr(collect, "measure", hang)
    _collect(config, "--job-seconds", "5")
    errors = {row["model"]: row.get("error", "") for row in _rows(config)}
    assert errors.pop("own/lenet").startswith("time limit")
    assert set(errors.values()) == {""}


@pytest.mark.parametrize("shard", ["3/2", "0/2", "half"])
def test_a_shard_that_cannot_be_is_refused(
    shard: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _collect(config, "--shard", shard) == 2
    assert f"--shard {shard}" in capsys.readouterr().err


def test_shards_share_the_jobs_out(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "measure", _fine)
    _collect(config, "--shard", "1/2")
    _collect(config, "--shard", "2/2")
    texts = [path.read_text() for path in sorted((config.parent / "out").glob("rows-*.jsonl"))]
    assert [len(text.splitlines()) for text in texts] == [2, 1]
