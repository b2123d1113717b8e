"""Estimates that are kept: the same answer again, and a new one as soon as anything behind it changes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import List, Tuple

import pytest

from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.training_job import StatedTraining, training_job
from slurm_gpumem.estimators.types import Estimate, TrainingJob
from slurm_gpumem.submission import kept_estimates
from slurm_gpumem.submission.kept_estimates import estimate_once, memory_once
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import ModelSummary

ROOT = Path(__file__).resolve().parents[2]
RESNET = ROOT / "docs" / "examples" / "resnet50.txt"
WRITTEN = """\
==========================================================================================
Layer (type:depth-idx)                   Output Shape              Param #
==========================================================================================
PairNet                                  [8, 10]                   --
├─PairBlock: 1-1                         [8, 512]                  --
│    └─Linear: 2-1                       [8, 512]                  393,728
│    └─ReLU: 2-2                         [8, 512]                  --
├─Linear: 1-2                            [8, 10]                   5,130
==========================================================================================
Total params: 398,858
Trainable params: 398,858
Non-trainable params: 0
==========================================================================================
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GPUMEM_SITE_CONFIG", str(tmp_path / "site" / "gpumem.toml"))
    (tmp_path / "site").mkdir()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> List[str]:
    """The estimates that were really made, by their estimator's name."""
    found: List[str] = []
    real = registry.run

    def counted(name: str, *rest: object) -> Estimate:
        found.append(name)
        return real(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(registry, "run", counted)
    return found


def _job(path: Path, batch: int = 64) -> Tuple[ModelSummary, TrainingJob]:
    summary = read_summary(path)
    return summary, training_job(summary, StatedTraining(batch_size=batch))


def _files(tmp_path: Path) -> List[Path]:
    return sorted((tmp_path / "cache" / "gpumem" / "estimates").iterdir())


def test_a_kept_estimate_is_the_same_in_every_part(tmp_path: Path, made: List[str]) -> None:
    (tmp_path / "pair.txt").write_text(WRITTEN)
    for path in (RESNET, tmp_path / "pair.txt"):
        summary, job = _job(path)
        first = estimate_once("auto", summary, job, find_gpu("a100"), 0.98)
        again = estimate_once("auto", read_summary(path), job, find_gpu("a100"), 0.98)
        assert again == first
        assert again.utilization == first.utilization
    assert len(made) == 2


def test_utilization_is_predicted_once_it_is_asked_for(made: List[str]) -> None:
    summary, job = _job(RESNET)
    asked = summary, job, find_gpu("a100"), None
    assert memory_once("auto", *asked).utilization is None
    assert estimate_once("auto", *asked).utilization is not None
    assert memory_once("auto", *asked).utilization is not None
    assert len(made) == 1


def test_another_batch_gpu_coverage_or_text_is_estimated(tmp_path: Path, made: List[str]) -> None:
    summary, job = _job(RESNET)
    estimate_once("auto", summary, job, find_gpu("a100"), None)
    estimate_once("auto", summary, _job(RESNET, 65)[1], find_gpu("a100"), None)
    estimate_once("auto", summary, job, find_gpu("v100"), None)
    estimate_once("auto", summary, job, find_gpu("a100"), 0.9)
    other = tmp_path / "resnet50.txt"
    other.write_text(RESNET.read_text() + "\n")
    estimate_once("auto", read_summary(other), job, find_gpu("a100"), None)
    assert len(made) == 5


def test_other_code_or_data_estimates_again(
    tmp_path: Path, made: List[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    for name in ("estimators", "summaries", "utilization", "models/environments", "models/fitted"):
        (package / name).mkdir(parents=True)
    (package / "estimators" / "rule.py").write_text("one")
    monkeypatch.setattr(kept_estimates, "package_folder", lambda name: str(package / name))
    summary, job = _job(RESNET)
    for changed in ("estimators/rule.py", "models/fitted/margins.json", "models/gpus.toml"):
        estimate_once("auto", summary, job, find_gpu("a100"), None)
        estimate_once("auto", summary, job, find_gpu("a100"), None)
        (package / changed).write_text("another rule")
    estimate_once("auto", summary, job, find_gpu("a100"), None)
    assert len(made) == 4


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"peak_mib": 1}', '{"peak_mib": "12"}', "[" * 100_000, "\0\0"],
)
def test_a_damaged_file_is_made_again(tmp_path: Path, made: List[str], content: str) -> None:
    summary, job = _job(RESNET)
    first = estimate_once("auto", summary, job, find_gpu("a100"), None)
    (kept,) = _files(tmp_path)
    kept.write_text(content)
    assert estimate_once("auto", summary, job, find_gpu("a100"), None) == first._replace()
    assert len(made) == 2
    assert json.loads(kept.read_text())["peak_mib"] == first.peak_mib


def test_a_size_that_cannot_be_is_no_answer(tmp_path: Path, made: List[str]) -> None:
    summary, job = _job(RESNET)
    estimate_once("auto", summary, job, find_gpu("a100"), None)
    (kept,) = _files(tmp_path)
    for wrong in (0, -5, "1024", None, 3.5):
        kept.write_text(json.dumps({**json.loads(kept.read_text()), "request_mib": wrong}))
        assert estimate_once("auto", summary, job, find_gpu("a100"), None).request_mib > 5000
    assert len(made) == 6


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_somebody_else_is_not_believed(tmp_path: Path, made: List[str]) -> None:
    summary, job = _job(RESNET)
    estimate_once("auto", summary, job, find_gpu("a100"), None)
    (kept,) = _files(tmp_path)
    os.chown(kept, 12345, 12345)
    estimate_once("auto", summary, job, find_gpu("a100"), None)
    assert len(made) == 2


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path, made: List[str]) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    summary, job = _job(RESNET)
    for _ in range(2):
        assert estimate_once("auto", summary, job, find_gpu("a100"), None).peak_mib > 5000
    assert len(made) == 2


def test_the_folder_does_not_grow_without_end(
    tmp_path: Path, made: List[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_estimates, "_KEPT", 3)
    for batch in range(8, 18):
        summary, job = _job(RESNET, batch)
        estimate_once("auto", summary, job, find_gpu("a100"), None)
        assert len(_files(tmp_path)) <= 3


def test_a_summary_that_came_from_no_file_is_not_kept(tmp_path: Path, made: List[str]) -> None:
    summary, job = _job(RESNET)
    for _ in range(2):
        estimate_once("auto", summary._replace(digest=""), job, find_gpu("a100"), None)
    assert len(made) == 2
    assert not (tmp_path / "cache").exists()
