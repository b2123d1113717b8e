"""The Python API, as the contract states it: others script against it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import slurm_gpumem
from slurm_gpumem import estimate
from slurm_gpumem.errors import GpumemError
from slurm_gpumem.formats.comment import PART_NAMES
from slurm_gpumem.summaries.parsers.own import to_json
from tests.estimators.explain.small_trace import small_summary

SUMMARY = """\
        Layer (type)               Output Shape         Param #
================================================================
            Conv2d-1         [-1, 64, 112, 112]           9,408
              ReLU-2         [-1, 64, 112, 112]               0
            Linear-3                 [-1, 1000]         257,000
================================================================
Total params: 266,408
"""


def test_a_path_and_the_text_itself_give_the_same_estimate(tmp_path: Path) -> None:
    path = tmp_path / "summary.txt"
    path.write_text(SUMMARY)
    options = {"batch_size": 128, "optimizer": "adam", "precision": "fp32", "gpu": "h200"}
    by_path = estimate(str(path), **options)  # type: ignore[arg-type]
    assert estimate(path, **options) == by_path  # type: ignore[arg-type]
    assert estimate(SUMMARY, **options).peak_mib == by_path.peak_mib  # type: ignore[arg-type]


def test_an_estimate_has_what_the_contract_names() -> None:
    e = estimate(SUMMARY, batch_size=128)
    assert type(e.parts) is dict
    assert set(e.parts) == set(PART_NAMES)
    assert sum(e.parts.values()) == e.peak_mib
    assert e.floor_mib <= e.peak_mib <= e.request_mib
    assert all(isinstance(size, int) for size in (e.peak_mib, e.request_mib, e.floor_mib, *e.parts.values()))
    assert isinstance(e.estimator, str)
    assert isinstance(e.warnings, tuple)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "sgd-momentum"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "amp-fp16", "amp-bf16", "bf16"])
def test_every_optimizer_and_precision_of_the_contract_is_known(optimizer: str, precision: str) -> None:
    assert estimate(SUMMARY, batch_size=8, optimizer=optimizer, precision=precision).peak_mib > 0


def test_a_larger_batch_needs_no_less() -> None:
    peaks = [estimate(SUMMARY, batch_size=batch).peak_mib for batch in (1, 8, 64, 512)]
    assert peaks == sorted(peaks)


@pytest.mark.parametrize(
    "wrong",
    [{"batch_size": 0}, {"batch_size": None}, {"gpu": "h2000"}, {"optimizer": "x"}, {"precision": "x"}],
)
def test_wrong_input_is_an_error_of_ours(wrong: dict[str, object]) -> None:
    with pytest.raises(GpumemError):
        estimate(SUMMARY, **{"batch_size": 8, **wrong})  # type: ignore[arg-type]


def test_an_estimate_needs_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        f"from slurm_gpumem import estimate; print(estimate({SUMMARY!r}, batch_size=8).peak_mib)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


@pytest.mark.parametrize("name", slurm_gpumem.__all__)
def test_a_public_name_is_there(name: str) -> None:
    if name == "summarize":
        pytest.importorskip("torch")
    assert getattr(slurm_gpumem, name) is not None


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError):
        slurm_gpumem.nonsense  # noqa: B018


def test_python_and_the_command_estimate_the_same_job_of_a_traced_summary(tmp_path: Path) -> None:
    summary = small_summary()
    assert summary.trace is not None
    traced = summary.trace.job._replace(
        optimizer="sgd", grad_accumulation=4, checkpointing=True, channels_last=True
    )
    path = tmp_path / "traced.json"
    path.write_text(to_json(summary._replace(trace=summary.trace._replace(job=traced))))
    for options, words in (
        ({}, []),
        ({"batch_size": 8, "optimizer": "SGD"}, ["--batch-size=8", "--optimizer=SGD"]),
    ):
        e = estimate(path, **options)  # type: ignore[arg-type]
        command = [sys.executable, "-m", "slurm_gpumem", "estimate", str(path), "--json", *words]
        env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "GPUMEM_SITE_CONFIG": str(tmp_path / "none")}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
        printed = json.loads(done.stdout)
        assert printed["job"] == e.job._asdict()
        assert (e.job.checkpointing, e.job.grad_accumulation, e.job.channels_last) == (True, 4, True)
        assert (printed["peak_mib"], printed["request_mib"]) == (e.peak_mib, e.request_mib)


def test_a_summary_of_summarize_is_estimated_as_its_file_is(tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(to_json(small_summary()))
    assert estimate(small_summary()).peak_mib == estimate(tmp_path / "small.json").peak_mib
