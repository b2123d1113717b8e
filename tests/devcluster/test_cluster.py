"""A cluster comes up, runs jobs, and goes away without a trace; all on real daemons."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_gpumem.devcluster import cluster as devcluster
from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.jobs import wait_for_job
from slurm_gpumem.devcluster.spec import ClusterSpec, default_nodes
from slurm_gpumem.errors import DevClusterError

pytestmark = pytest.mark.slurm


def submit(cluster: Cluster, *options: str, command: str, **run: Any) -> str:
    done = cluster.run(["sbatch", "--parsable", "-o", "/dev/null", *options, "--wrap", command], **run)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def gpu_of(cluster: Cluster, job: str) -> str:
    return wait_for_job(cluster, job, ["RUNNING"])["GRES"]


def test_the_nodes_are_idle_when_up_returns(cluster: Cluster) -> None:
    nodes = cluster.run(["sinfo", "-h", "-N", "-p", "gpu", "-o", "%N %T %G"], check=True).stdout
    assert [line.split()[:2] for line in nodes.splitlines()] == [["n1", "idle"], ["n2", "idle"]]
    assert "gpu:a100:4" in nodes
    assert "shard:a100:160" in nodes


def test_it_is_configured_as_sites_are(cluster: Cluster) -> None:
    settings = cluster.run(["scontrol", "show", "config"], check=True).stdout
    assert "CR_CORE_MEMORY" in settings
    partitions = cluster.run(["sinfo", "-h", "-o", "%P %l"], check=True).stdout.split()
    assert partitions == ["gpu*", "2-00:00:00", "whole", "12:00:00"]


def test_eight_shared_jobs_pack_onto_gpus_by_memory(make_cluster: Any) -> None:
    cluster = make_cluster(nodes=default_nodes(1))
    jobs = [
        submit(cluster, "--gres=shard:12", "--cpus-per-task=2", "--mem=8G", command="sleep 60")
        for _ in range(8)
    ]
    for job in jobs:
        wait_for_job(cluster, job, ["RUNNING"])
    seen = cluster.run(["squeue", "-h", "-t", "R", "-o", "%N"], check=True).stdout.split()
    assert seen == ["n1"] * 8


def test_a_second_up_in_the_same_folder_is_refused(cluster: Cluster) -> None:
    with pytest.raises(DevClusterError, match="already runs in this state folder"):
        devcluster.up(ClusterSpec(state=cluster.layout.root))
    assert cluster.run(["scontrol", "ping"]).returncode == 0
