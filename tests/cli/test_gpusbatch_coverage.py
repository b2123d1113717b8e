"""The coverage of a request: the site's, a partition's, the job's own; and where it decides nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.slurm

JOB = ("job.sh", "--model", "summary.txt", "--batch-size", "256")


def asked(desk: Any, *argv: str, env: Any = None) -> Any:
    done = desk.call("--dry-run", "--json", *argv, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_job_asks_for_less_at_a_lower_coverage_and_its_own_wins(desk: Any) -> None:
    plain, low = asked(desk, *JOB), asked(desk, "--coverage", "0.9", *JOB)
    assert low["request_mib"] < plain["request_mib"]
    assert low["peak_mib"] == plain["peak_mib"]
    path = desk.folder / "gpumem.toml"
    path.write_text("[sharing]\ncoverage = 0.9\n\n[sharing.partition.gpu]\ncoverage = 0.995\n")
    env = {"GPUMEM_SITE_CONFIG": str(path)}
    assert asked(desk, "-p", "gpu", *JOB, env=env)["request_mib"] > plain["request_mib"]
    desk.script("job.sh", "true", "#GPUMEM coverage=0.9")
    assert asked(desk, "-p", "gpu", *JOB, env=env)["request_mib"] == low["request_mib"]


def test_a_coverage_that_decides_nothing_is_said(desk: Any) -> None:
    done = desk.call("--dry-run", "--gpu-mem", "4G", "--coverage", "0.9", "job.sh")
    assert done.returncode == 0, done.stderr
    assert "coverage has no effect: the GPU memory given by hand" in done.stderr
