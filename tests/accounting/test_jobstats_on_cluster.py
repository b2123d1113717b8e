"""Summaries for jobstats on real daemons, read by the tools themselves where they are installed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any, Callable

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import NodeSpec
from slurm_gpumem.formats.jobstats import read_summary
from tests.support.needs import needs_root
from tests.support.slurm_jobs import hold_until, submit_shared, verified_peaks
from tests.support.waiting import until

pytestmark = [pytest.mark.slurm, needs_root]
GATHER = ("JobAcctGatherType=jobacct_gather/linux", "JobAcctGatherFrequency=1")
KEEPS_CASE = (23, 2)


@pytest.fixture
def finished(make_cluster: Callable[..., Cluster], state_folder: Path) -> Any:
    """A cluster, a shared job that ran there, and what `gpumem collect --jobstats` said after it."""
    cluster = make_cluster(nodes=(NodeSpec("n1"),), accounting=True, hooks=True, extra_conf=GATHER)
    go, live = state_folder / "go", cluster.layout.nodes / "n1" / "live.json"
    job = submit_shared(cluster, 12, hold_until(go, 3000))
    until(lambda: verified_peaks(live) == {job: 3000.0})
    # Slurm has looked at its memory, which 26.05 does not do at the end.
    asked = ["sstat", "-n", "-P", "-a", "-o", "MaxRSS", "-j", job]
    until(lambda: cluster.run(asked).stdout.strip() not in ("", "0"))
    go.touch()
    until(lambda: not cluster.run(["squeue", "-h"], check=True).stdout)
    gpumem = str(Path(sys.executable).with_name("gpumem"))

    def collect() -> Any:
        done = cluster.run([gpumem, "collect", "--jobstats"], timeout_s=120)
        assert done.returncode == 0, done.stderr
        said = done.stdout + done.stderr
        return said if "for jobstats" in said else None

    return cluster, job, until(collect)


def comment_of(cluster: Cluster, job: str) -> str:
    shown = cluster.run(["sacct", "-X", "-n", "-P", "-o", "AdminComment", "-j", job], check=True)
    return shown.stdout.strip()


def version(cluster: Cluster) -> Any:
    words = cluster.run(["sacctmgr", "--version"], check=True).stdout.split()[-1]
    return tuple(int(part) for part in words.split(".")[:2])


def test_a_shared_job_has_a_summary_that_the_tools_print(finished: Any) -> None:
    cluster, job, said = finished
    if version(cluster) < KEEPS_CASE:
        assert "before Slurm 23.02" in said
        assert comment_of(cluster, job) == ""
        pytest.skip(
            "sacctmgr of this Slurm destroys summaries, and none was written; 23.02 or later has them"
        )
    table = read_summary(comment_of(cluster, job))
    assert table is not None
    node = table["nodes"]["n1"]
    assert (node["gpu_total_memory"], node["gpu_used_memory"]) == ({"0": 12 << 30}, {"0": 3000 << 20})
    assert node["used_memory"] > 0
    _check_reportseff(cluster, job)
    _check_jobstats(cluster, job)


def _check_reportseff(cluster: Cluster, job: str) -> None:
    reportseff = shutil.which("reportseff")
    if reportseff is None:
        pytest.skip("the summary is right; reportseff is not installed to print it (pip install reportseff)")
    shown = cluster.run([reportseff, "--format", "JobID,GPUMem", "--no-color", job]).stdout.split()
    assert shown[-2:] == [job, "24.4%"]


def _check_jobstats(cluster: Cluster, job: str) -> None:
    jobstats = shutil.which("jobstats")
    if jobstats is None:
        pytest.skip("reportseff prints it; jobstats is not installed (a checkout of it on the PATH is)")
    shown = cluster.run([jobstats, "-n", job])
    assert shown.returncode == 0, shown.stderr
    assert f"Job ID: {job}" in shown.stdout
    assert "n1: " in shown.stdout
    assert "malformed" not in shown.stdout
    assert f'"0": {3000 << 20}' in cluster.run([jobstats, "-j", job]).stdout
