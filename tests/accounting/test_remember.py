"""A job that ran before has a measured peak, which beats any estimate."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from slurm_gpumem.accounting.remember import remember_own
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators import registry, remembered
from slurm_gpumem.estimators.gpus import find_gpu, plain_gpu
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.formats.comment import PART_NAMES
from slurm_gpumem.formats.job_record import PREALLOCATED
from slurm_gpumem.formats.remembered import SCHEMA
from slurm_gpumem.submission.needs import as_active_as_before
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.utilization.predict import estimate_with_utilization
from tests.accounting.job_records import NOON, UUID, opened, record, write

SUMMARY = read_summary((Path(__file__).parents[2] / "docs" / "examples" / "small-cnn.txt").read_text())
JOB = TrainingJob(batch_size=128)
GPU = find_gpu("a100")


@pytest.fixture(autouse=True)
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "remembered.json"
    monkeypatch.setenv("GPUMEM_REMEMBERED", str(path))
    return path


def ran(root: Path, job_id: int, peak: float, **changes: Any) -> None:
    """A finished run of the model, by whoever runs this test."""
    claim = {"fp": SUMMARY.fingerprint, **changes.pop("claim", {})}
    start = NOON + job_id * 4000
    table = {"uid": os.geteuid(), "start": start, "end": start + 3600, "peak_mib": peak, **changes}
    write(root / "spool", record(job_id, claim=claim, **table))


def recalled(root: Path) -> Any:
    with opened(root) as store:
        assert remember_own(store.connection) is None
    return remembered.recall(SUMMARY, JOB, GPU)


def test_finished_runs_of_the_same_job_are_remembered_the_latest_first(tmp_path: Path) -> None:
    for number, peak in enumerate((9000.0, 9100.0, 9050.0), start=1):
        ran(tmp_path, number, peak)
    assert recalled(tmp_path) == (9050, 9100, 9000)


@pytest.mark.parametrize(
    "changes",
    [
        {"claim": {"fp": "another"}},
        {"claim": {"batch": "64"}},
        {"claim": {"opt": "sgd"}},
        {"claim": {"prec": "amp-bf16"}},
        {"claim": {"more": "ckpt"}},
        {"gpu_name": "NVIDIA H100 80GB HBM3"},
        {"state": "FAILED", "exit_code": 1},
        {"state": "CANCELLED"},
        {"samples": 1},
        {"uid": 4242},
        {"notes": [f"{PREALLOCATED} (JAX): what it needs is not known"]},
    ],
)
def test_other_runs_and_other_peoples_are_not(tmp_path: Path, changes: Any) -> None:
    ran(tmp_path, 1, 9000.0, **changes)
    assert recalled(tmp_path) == ()


def test_the_estimate_is_the_measured_peak_with_a_reserve(tmp_path: Path) -> None:
    for number, peak in enumerate((9000.0, 9300.0), start=1):
        ran(tmp_path, number, peak)
    recalled(tmp_path)
    estimate = registry.run("remembered", SUMMARY, JOB, GPU)
    assert (estimate.peak_mib, estimate.request_mib, estimate.estimator) == (9300, 9600, "remembered")
    assert (tuple(estimate.parts), sum(estimate.parts.values())) == (PART_NAMES, 9300)
    assert all(size >= 0 for size in estimate.parts.values())
    assert estimate.assumptions == ("remembered: 2 runs on a100 took 8.8 GiB to 9.1 GiB",)


def test_asked_for_without_any_run_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no finished run"):
        registry.run("remembered", SUMMARY, JOB, GPU)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema":"gpumem-remembered/1","runs":[]}', "[" * 5000])
def test_a_broken_file_remembers_nothing(own_file: Path, text: str) -> None:
    own_file.write_text(text)
    assert remembered.recall(SUMMARY, JOB, GPU) == ()


def test_peaks_that_are_no_sizes_are_not_believed(own_file: Path) -> None:
    key = f"{SUMMARY.fingerprint} 128 adam fp32 "
    runs = {key: {"a100": [9000, -1, "9", None, 1e99, True]}}
    own_file.write_text(json.dumps({"schema": SCHEMA, "runs": runs}))
    assert remembered.recall(SUMMARY, JOB, GPU) == (9000,)


def test_a_gpu_is_known_by_any_of_its_names() -> None:
    names = ("a100", "NVIDIA A100-SXM4-40GB", "nvidia_a100_80gb_pcie", "A100")
    assert {plain_gpu(name) for name in names} == {"a100"}
    assert plain_gpu("NVIDIA GeForce RTX 4090") == plain_gpu("rtx_4090")
    # A site's short name for what NVML calls otherwise; two cards that share a number.
    assert plain_gpu("3090") == plain_gpu("NVIDIA GeForce RTX 3090")
    assert plain_gpu("2080ti") == plain_gpu("NVIDIA GeForce RTX 2080 Ti")
    assert plain_gpu("Quadro RTX 6000") != plain_gpu("NVIDIA RTX 6000 Ada Generation")
    assert plain_gpu("a100_1g.5gb") == "a100"
    assert plain_gpu("Our Card") == "our card"


def test_the_word_for_rare_settings_tells_them_apart() -> None:
    assert remembered.variant(JOB) == ""
    job = TrainingJob(batch_size=1, gpus=2, grad_accumulation=4, checkpointing=True, loss="mse")
    assert remembered.variant(job) == "ddp2+acc4+ckpt+mse"


def test_only_the_latest_ten_are_kept(tmp_path: Path) -> None:
    for number in range(1, 15):
        ran(tmp_path, number, 9000.0 + number)
    assert recalled(tmp_path) == tuple(9014 - number for number in range(10))


def test_activity_alone_is_remembered_and_takes_the_place_of_a_prediction(tmp_path: Path) -> None:
    figures = {"number": 0, "name": "NVIDIA A100-SXM4-40GB", "memory_mib": 40960.0, "peak_mib": 9000.0}
    for number, alone in enumerate((0.61, 0.65, None), start=1):
        ran(tmp_path, number, 9000.0, gpu={UUID: {**figures, "alone_sm": alone}})
    recalled(tmp_path)
    percents = remembered.recall_activity(SUMMARY, JOB, GPU)
    assert percents == (65, 61)
    predicted = estimate_with_utilization("structural", SUMMARY, JOB, GPU)
    used = as_active_as_before(predicted, percents).utilization
    assert used is not None
    assert (used.sm_active, used.source) == (65.0, "remembered")
    assert as_active_as_before(predicted, ()) is predicted


MIG = {"number": 0, "name": "NVIDIA A100-SXM4-40GB MIG 2g.10gb", "memory_mib": 9856.0, "instance": "3/0"}


def test_a_run_on_a_mig_instance_counts_for_such_instances_only(tmp_path: Path) -> None:
    ran(tmp_path, 1, 9000.0, mode="mig", gpu={UUID: {**MIG, "peak_mib": 9000.0, "alone_sm": 0.9}})
    assert recalled(tmp_path) == ()
    for name in ("a100_2g.10gb", "2g.10gb"):
        assert remembered.recall(SUMMARY, JOB, find_gpu(name)) == (9000,)
        assert remembered.recall_activity(SUMMARY, JOB, find_gpu(name)) == (90,)
    for other in ("a100_3g.20gb", "h100_2g.20gb"):
        assert remembered.recall(SUMMARY, JOB, find_gpu(other)) == ()


def test_a_peak_on_the_whole_gpu_bounds_one_on_its_instances_but_activity_does_not(tmp_path: Path) -> None:
    figures = {"number": 0, "name": "NVIDIA A100-SXM4-40GB", "memory_mib": 40960.0, "alone_sm": 0.2}
    ran(tmp_path, 1, 9000.0, gpu={UUID: figures})
    assert recalled(tmp_path) == (9000,)
    assert remembered.recall(SUMMARY, JOB, find_gpu("a100_2g.10gb")) == (9000,)
    assert remembered.recall_activity(SUMMARY, JOB, find_gpu("a100_2g.10gb")) == ()
