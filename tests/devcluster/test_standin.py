"""The stand-in job holds memory, logs like a training job and fails like PyTorch, through real Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_gpumem.devcluster import ledger
from slurm_gpumem.devcluster.demo import wait_for_job
from slurm_gpumem.devcluster.ledger import LedgerGpu
from slurm_gpumem.devcluster.spec import default_nodes
from tests.support.slurm_jobs import jobs_on_gpus, submit_shared
from tests.support.waiting import until

slurm = pytest.mark.slurm


@pytest.fixture
def gpu(tmp_path: Path) -> LedgerGpu:
    (tmp_path / "ledger").mkdir()
    ledger.create(tmp_path / "ledger", {"n1": [ledger.StandIn(1000)]})
    return LedgerGpu(tmp_path / "ledger", "n1", 0)


def play(folder: Path, *args: str, visible: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "slurm_gpumem.devcluster.standin", *args],
        env={
            **os.environ,
            "GPUMEM_DEVCLUSTER": str(folder),
            "SLURMD_NODENAME": "n1",
            "CUDA_VISIBLE_DEVICES": visible,
            "SLURM_JOB_ID": "7",
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_logs_steps_and_its_peak_stands_in_the_ledger(gpu: LedgerGpu, tmp_path: Path) -> None:
    done = play(tmp_path, "--peak", "900", "--steps", "4", "--seconds", "0.1")
    assert done.returncode == 0, done.stderr
    assert "step 4/4 loss " in done.stdout
    assert gpu.peaks() == {"7": 900}
    assert gpu.holders() == {}


def test_it_follows_a_curve_file(gpu: LedgerGpu, tmp_path: Path) -> None:
    (tmp_path / "curve").write_text("100  # weights\n\n800\n300\n")
    done = play(tmp_path, "--curve", str(tmp_path / "curve"), "--seconds", "0.1")
    assert [line.split(" memory ")[1] for line in done.stdout.splitlines() if line.startswith("step")] == [
        "100 MiB",
        "800 MiB",
        "300 MiB",
    ]


def test_more_than_the_gpu_has_ends_in_pytorchs_own_words(gpu: LedgerGpu, tmp_path: Path) -> None:
    gpu.hold(400, "another job")  # by this test's process
    done = play(tmp_path, "--peak", "700", "--seconds", "0.1")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 490.00 MiB. GPU 0 has"
    )
    assert "of which 390.00 MiB is free." in last
    assert f"Process {os.getpid()} has 400.00 MiB memory in use." in last
    assert gpu.holders() == {"another job": 400}


@pytest.mark.parametrize("curve", ["", "12\nmany\n"])
def test_a_bad_curve_is_told_without_a_traceback(gpu: LedgerGpu, tmp_path: Path, curve: str) -> None:
    (tmp_path / "curve").write_text(curve)
    done = play(tmp_path, "--curve", str(tmp_path / "curve"))
    assert done.returncode == 2
    assert done.stderr.startswith("gpumem-standin: ")
    assert "Traceback" not in done.stderr


def test_without_a_gpu_it_says_what_is_missing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "slurm_gpumem.devcluster.standin", "--peak", "5"],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "run this inside a job" in done.stderr


@slurm
def test_a_job_that_outgrows_its_gpu_fails_in_slurm_as_pytorch_does(make_cluster: Any) -> None:
    cluster = make_cluster(nodes=default_nodes(1, gpus=1))
    # Both ask for less than they take: together they do not fit, though Slurm thinks they do.
    first = submit_shared(cluster, 10, "gpumem-standin --peak 25000 --steps 300 --seconds 60")
    until(lambda: jobs_on_gpus(cluster) == {"n1 gpu0": [first]})
    until(lambda: LedgerGpu(cluster.layout.ledger, "n1", 0).holders() == {first: 25000})
    log = cluster.layout.root / "second.log"
    second = submit_shared(cluster, 10, "gpumem-standin --peak 25000 --seconds 1", output=str(log))
    ended = wait_for_job(cluster, second)
    assert ended["JobState"] == "FAILED"
    assert ended["ExitCode"] == "1:0"
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate" in log.read_text()
