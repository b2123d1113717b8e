"""setup and doctor on real daemons."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import default_nodes
from slurm_gpumem.site.setup.plan import SPREADING
from slurm_gpumem.slurm.client import parse_version

pytestmark = pytest.mark.slurm


def gpumem(cluster: Cluster, *args: str) -> Any:
    return cluster.run([str(Path(sys.executable).with_name("gpumem")), *args])


def test_what_setup_writes_makes_a_cluster_share_and_the_doctor_content(
    cluster: Cluster, make_cluster: Any, tmp_path: Path
) -> None:
    done = gpumem(cluster, "setup", "--output", str(tmp_path / "new"))
    assert done.returncode == 0, done.stderr
    assert "+JobSubmitPlugins=lua" in done.stdout
    assert "gpu" in (tmp_path / "new" / "gres.conf").read_text()

    shared = make_cluster(job_submit_lua=str(tmp_path / "new" / "job_submit.lua"))
    asked = shared.run(
        ["sbatch", "-H", "--gres=gpu:a100:1", "-o", "/dev/null"], input="#!/bin/sh\n#GPUMEM mem=12G\n"
    )
    assert "--gres=gpu:a100:1 became --gres=shard:a100:12 (one GPU has 40)" in asked.stderr
    assert gpumem(shared, "doctor", "--ignore", "mixed-jobs").returncode == 0
    again = gpumem(shared, "setup")
    assert "gpumem_site.lua" not in again.stdout


def test_a_slurm_conf_that_stops_every_command_is_named(make_cluster: Any) -> None:
    cluster = make_cluster(nodes=default_nodes(1))
    if parse_version(cluster.run(["sinfo", "--version"]).stdout) >= SPREADING:
        pytest.skip("this Slurm knows LL_SHARED_GRES")
    conf = cluster.layout.slurm_conf
    good = conf.read_text()
    conf.write_text(good.replace("CR_Core_Memory", "CR_Core_Memory,LL_SHARED_GRES"))
    done = gpumem(cluster, "doctor")
    conf.write_text(good)
    assert done.returncode == 2
    assert "ll-shared-gres: slurm.conf has LL_SHARED_GRES" in done.stdout
