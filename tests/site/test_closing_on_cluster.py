"""Why a busy GPU is not closed by a reservation: no version of Slurm can reserve one GPU of a node in use."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_gpumem.devcluster.spec import default_nodes
from slurm_gpumem.slurm.client import parse_version
from tests.support.slurm_jobs import submit
from tests.support.waiting import until

pytestmark = pytest.mark.slurm

RESERVATION = ("ReservationName=busy", "StartTime=now", "Duration=1", "Users=root", "Flags=IGNORE_JOBS")


def test_one_gpu_of_a_node_in_use_cannot_be_reserved(make_cluster: Any) -> None:
    extra = ("AccountingStorageTRES=gres/gpu,gres/shard",)
    cluster = make_cluster(nodes=default_nodes(1), accounting=True, extra_conf=extra)
    version = parse_version(cluster.run(["sinfo", "--version"], check=True).stdout)
    job = submit(cluster, "--gres=shard:4", "--mem=64", "--cpus-per-task=1", command="sleep 60")
    until(lambda: "RUNNING" in cluster.run(["squeue", "-h", "-j", job, "-o", "%T"]).stdout)
    done = cluster.run(
        ["scontrol", "create", "reservation", *RESERVATION, "Nodes=n1", "TRESPerNode=gres/shard=40"]
    )
    if version < (23, 11):
        assert "Unknown parameter TRESPerNode" in done.stderr
    elif done.returncode:
        assert "Requested nodes are busy" in done.stderr
    else:
        shown = cluster.run(["scontrol", "show", "reservation", "busy"], check=True).stdout
        assert "CoreCnt=64 " in shown, "it takes all cores of the node, and so closes its other GPUs, too"
        assert "IDX" not in shown, "and it does not say which GPU"
