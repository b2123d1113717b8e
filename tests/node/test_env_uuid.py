"""Flags=env_uuid of gres.conf on a real slurmd that finds made-up GPUs: what our hooks are given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.node.conftest import REPOSITORY, needs_root

MADE_DRIVER = Path(__file__).with_name("made_driver.sh")
FIRST = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f0"

pytestmark = [needs_root, pytest.mark.slurm]


def test_hooks_are_given_numbers_where_jobs_see_uuids(state_folder: Path) -> None:
    root = os.environ.get("GPUMEM_TEST_SLURM_ROOT")
    if not root or not list(Path(root).glob("usr/lib/*/slurm-wlm/gpu_nvidia.so")):
        pytest.skip("needs a Slurm with AutoDetect=nvidia: make test-slurm-versions")
    if subprocess.run([MADE_DRIVER, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mounts may be made here")
    done = subprocess.run(
        [MADE_DRIVER, sys.executable, "-m", "tests.node.uuid_cluster", root, state_folder],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    whole, shared = map(json.loads, done.stdout.splitlines())
    if whole["task"]["CUDA_VISIBLE_DEVICES"] == "0":
        pytest.skip("this Slurm does not know Flags=env_uuid")
    assert whole["prolog"] == {"CUDA_VISIBLE_DEVICES": FIRST, "SLURM_JOB_GPUS": "0"}
    assert whole["task"] == {"CUDA_VISIBLE_DEVICES": FIRST, "SLURM_STEP_GPUS": "0"}
    assert shared["prolog"]["SLURM_JOB_GPUS"] == shared["task"]["SLURM_STEP_GPUS"] == "0"
    assert whole["ours"] == shared["ours"] == [FIRST]
