"""gpusbatch and the job_submit plug-in agree: what one asked for, the other leaves alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from slurm_gpumem.data import LUA_FILES, data_path
from slurm_gpumem.site.nodes import GpuGroup, NodeGroup
from slurm_gpumem.site.setup.plan import SitePlan
from slurm_gpumem.site.setup.render import lua_table
from slurm_gpumem.slurm.client import parse_version
from tests.support.slurm_jobs import set_mode

pytestmark = pytest.mark.slurm


@pytest.fixture
def hook(cluster: Any, tmp_path: Path) -> str:
    """The plug-in with this cluster's site table."""
    folder = tmp_path / "lua"
    folder.mkdir()
    for name in (*LUA_FILES, "job_submit.lua"):
        shutil.copy(data_path("lua", name), folder)
    plan = SitePlan(
        groups=(NodeGroup("n[1-2]", (GpuGroup("a100", 4, 40960),), ("gpu", "whole"), 64, 512_000),),
        partitions=("gpu", "whole"),
        default_partition="gpu",
        reserve_mib=0,
        version=parse_version(cluster.run(["sinfo", "--version"], check=True).stdout),
    )
    (folder / "gpumem_site.lua").write_text(lua_table(plan))
    return str(folder / "job_submit.lua")


def test_what_gpusbatch_asked_for_passes_the_hook_unchanged(
    hook: str, make_cluster: Any, desk_at: Any
) -> None:
    cluster = make_cluster(job_submit_lua=hook)
    set_mode(cluster, "on")  # the one that goes furthest
    desk = desk_at(cluster)
    desk.script("typed.sh", "true", "#SBATCH --gpus=a100:1")
    cases = {
        "shard:10": ["job.sh", "--gpu-mem", "10G"],
        "shard:a100:10": ["typed.sh", "--gpu-mem", "10G"],
        "gpu:2": ["--gres=gpu:2", "job.sh", "--gpu-mem", "10G"],
        "shard:a100:40": ["job.sh", "--gpu-mem", "39.5G", "--gres=gpu:a100:1"],
    }
    for gres, argv in cases.items():
        job = desk.submit("-H", *argv)
        assert desk.gres(job) == gres
        assert "AdminComment" not in desk.shown(job)
    # By hand, the hook does change such a job: it is on.
    done = desk.call(
        "--parsable", "-H", "--gres=gpu:1", command="sbatch", stdin="#!/bin/sh\n#GPUMEM mem=3G\ntrue\n"
    )
    assert desk.gres(done.stdout.strip()) == "shard:3"


def test_a_gpu_of_its_own_stays_one_under_the_hook(hook: str, make_cluster: Any, desk_at: Any) -> None:
    cluster = make_cluster(job_submit_lua=hook)
    set_mode(cluster, "on")  # the one that goes furthest
    desk = desk_at(cluster)
    alone = desk.submit("-H", "job.sh", "--model", "summary.txt", "--batch-size", "8", "--exclusive-gpu")
    assert desk.gres(alone) in ("gpu:1", "shard:a100:40")
    observed = desk.submit(
        "-H", "--gres=gpu:1", "job.sh", "--gpu-mem", "10G", env={"GPUMEM_SHARING_MODE": "observe"}
    )
    assert desk.gres(observed) == "gpu:1"
