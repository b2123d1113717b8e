"""Jobs of networks: trained, traced, described and scored by the same runner as scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List

import pytest

pytest.importorskip("torch", reason="jobs train with torch")

import torch

from lab.networks.jobs import job_of
from lab.networks.train import train
from lab.score.blind import answers
from lab.scripts import measure, run
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.units import MIB

NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.wide, self.narrow = torch.nn.Linear(64, width), torch.nn.Linear(width, 10)

    def forward(self, x):
        return self.narrow(torch.relu(self.wide(x)))
"""
JOB: Dict[str, Any] = {
    "source": "repository",
    "repository": "ann/nets",
    "commit": "c0ffee",
    "name": "net",
    "family": "handwritten-ann",
    "build": "net.Net",
    "args": {"width": 512},
    "task": "squares",
    "task_args": {"inputs": ["float S"]},
    "size": 64,
    "batch": 8,
    "optimizer": "adam",
    "precision": "fp32",
    "steps": 2,
}
PARAMETERS = 65 * 512 + 513 * 10


@pytest.fixture
def repositories(tmp_path: Path) -> Path:
    (tmp_path / "ann+nets").mkdir()
    (tmp_path / "ann+nets" / "net.py").write_text(NET)
    return tmp_path


def _list(folder: Path) -> Path:
    values = ", ".join(f"{key} = {_toml(value)}" for key, value in JOB.items())
    path = folder / "jobs.toml"
    path.write_text(f'[[script]]\nname = "net-b8"\njob = {{ {values} }}\n')
    return path


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)


def _options(folder: Path, what: str, rows: Path) -> List[str]:
    return [what, str(_list(folder)), "--repositories", str(folder), "--out", str(rows), "--seconds", "600"]


def _rows(path: Path) -> List[Dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_job_trains_as_many_steps_as_it_says(
    repositories: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUMEM_REPOSITORIES", str(repositories))
    train(job_of(JOB), torch.device("cpu"))
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["step 1", "step 2"]


def test_a_list_of_jobs_is_traced_and_described_and_scored_from_one_file(
    repositories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = repositories / "rows.jsonl"
    assert run.main(_options(repositories, "texts", rows)) == 0
    assert run.main(_options(repositories, "trace", rows)) == 0
    texts, traced = _rows(rows)
    assert (texts["kind"], traced["kind"]) == ("texts", "traced")
    assert texts["key"] == traced["key"] == "repository/net@64/b8/adam/fp32"
    assert texts["parameters"] == PARAMETERS
    assert "Linear(in_features=64, out_features=512" in texts["print"]
    assert read_summary(traced["trace"]).trace is not None, traced.get("trace_error")

    monkeypatch.setattr(measure, "process_peaks", lambda pid: 700 * MIB)
    monkeypatch.setattr(measure, "gpu_facts", lambda: {"gpu": "NVIDIA H200", "gpu_mib": 143771})
    assert run.main(_options(repositories, "measure", rows)) == 0
    row = _rows(rows)[-1]
    assert (row["kind"], row["run_code"], row["process_bytes"]) == ("measured", 0, 700 * MIB), row
    # There is no GPU here: what its hooks would have reported.
    row.update(reserved_bytes=100 * MIB, optimizer_tensors=12)
    with open(rows, "a") as file:
        file.write(json.dumps(row) + "\n")
    found = {one.kind: one for one in answers(rows, None)}
    assert found["trace"].made is not None
    assert found["trace"].need_mib == 700
