"""Where shared jobs land on real daemons, and whether large jobs get their turn among small ones."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import NodeSpec, default_nodes
from slurm_gpumem.site.queue_order import flow_settings
from slurm_gpumem.site.setup.plan import PACK, SPREAD, SPREAD_WORD, SPREADING
from slurm_gpumem.slurm.client import parse_version
from slurm_gpumem.slurm.state.running import placements
from tests.support.slurm_jobs import submit
from tests.support.waiting import until

pytestmark = pytest.mark.slurm

SMALL = ("--gres=shard:10", "--mem=64", "--cpus-per-task=1")
DATABASE = {"AccountingStorageType": "accounting_storage/slurmdbd"}


def can_spread(cluster: Cluster) -> bool:
    return parse_version(cluster.run(["sinfo", "--version"], check=True).stdout) >= SPREADING


def set_up(cluster: Cluster, make_cluster: Any, *options: str) -> Cluster:
    """A cluster of one node with four GPUs, with the line that setup proposes for that of `cluster`."""
    gpumem = str(Path(sys.executable).with_name("gpumem"))
    done = cluster.run([gpumem, "setup", "--untried", *options])
    assert done.returncode == 0, done.stderr
    lines = [line[1:] for line in done.stdout.splitlines() if line.startswith("+SelectTypeParameters=")]
    return make_cluster(nodes=default_nodes(1), extra_conf=tuple(lines))


def gpus_of(cluster: Cluster, jobs: List[str]) -> List[int]:
    def where() -> List[int]:
        texts = [cluster.run(["scontrol", "show", "job", "-d", job], check=True).stdout for job in jobs]
        return [place.gpu for text in texts for place in placements(text)]

    until(lambda: len(where()) == len(jobs))
    return where()


def states(cluster: Cluster) -> Dict[str, str]:
    lines = cluster.run(["squeue", "-h", "-t", "all", "-o", "%i %T"], check=True).stdout.split("\n")
    return dict(line.split() for line in lines if line)


def test_four_jobs_on_an_idle_node_land_on_four_gpus_where_slurm_can_spread(
    make_cluster: Any,
) -> None:
    first = make_cluster(nodes=default_nodes(1))
    cluster = set_up(first, make_cluster)
    jobs = [submit(cluster, *SMALL, command="sleep 600") for _ in range(4)]
    # 22.05 fills the first GPU, whatever is configured: docs/admin/placement.md.
    assert gpus_of(cluster, jobs) == ([0, 1, 2, 3] if can_spread(cluster) else [0, 0, 0, 0])


def test_packed_jobs_leave_the_other_gpus_whole(make_cluster: Any) -> None:
    first = make_cluster(nodes=default_nodes(1))
    cluster = set_up(first, make_cluster, "--placement", PACK)
    jobs = [submit(cluster, *SMALL, command="sleep 600") for _ in range(4)]
    assert gpus_of(cluster, jobs) == [0, 0, 0, 0]


def test_setup_takes_spreading_out_again_and_the_doctor_says_which_is_in_force(make_cluster: Any) -> None:
    plain = make_cluster(nodes=default_nodes(1))
    gpumem = str(Path(sys.executable).with_name("gpumem"))
    assert "note placement: placement: pack" in plain.run([gpumem, "doctor"]).stdout
    if not can_spread(plain):
        refused = plain.run([gpumem, "setup", "--untried", "--placement", SPREAD])
        assert refused.returncode == 2
        assert "--placement spread needs LL_SHARED_GRES, which Slurm 22.05" in refused.stderr
        return
    cluster = set_up(plain, make_cluster)
    assert "note placement: placement: spread" in cluster.run([gpumem, "doctor"]).stdout
    back = cluster.run([gpumem, "setup", "--untried", "--placement", PACK]).stdout
    assert f"-SELECTTYPEPARAMETERS=CR_CORE_MEMORY,{SPREAD_WORD}\n" in back.upper()
    assert "+SELECTTYPEPARAMETERS=CR_CORE_MEMORY\n" in back.upper()


def test_small_shares_go_around_a_large_one_until_it_has_waited_long_enough(make_cluster: Any) -> None:
    lines = tuple(f"{key}={value}" for key, value in flow_settings(DATABASE).items())
    cluster = make_cluster(nodes=(NodeSpec("n1", gpus=1),), extra_conf=lines, accounting=True)
    half = submit(cluster, "--gres=shard:20", "--mem=64", "--time=30", command="sleep 600")
    gpus_of(cluster, [half])
    large = submit(cluster, "--gres=shard:40", "--mem=64", "--time=30", command="sleep 600")
    small = submit(cluster, *SMALL, "--time=60", command="sleep 600")
    until(lambda: states(cluster).get(small) == "RUNNING")
    assert states(cluster)[large] == "PENDING"
    # What an hour of age gives it.
    cluster.run(["scontrol", "update", f"jobid={large}", "priority=600"], check=True)
    late = submit(cluster, *SMALL, "--time=60", command="sleep 600")
    until(lambda: _reason(cluster, late) == "Priority")
    cluster.run(["scancel", half, small], check=True)
    until(lambda: states(cluster).get(large) == "RUNNING")
    assert states(cluster)[late] == "PENDING"


def test_shares_meet_on_no_gpu_of_a_partition_with_lln_while_another_is_idle(make_cluster: Any) -> None:
    nodes = (NodeSpec("n1", gpus=2), NodeSpec("n2", gpus=2))
    gpumem = str(Path(sys.executable).with_name("gpumem"))
    done = make_cluster(nodes=nodes).run([gpumem, "setup", "--untried"])
    assert done.returncode == 0, done.stderr
    added = [line[1:] for line in done.stdout.splitlines() if line.startswith("+")]
    can = any(SPREAD_WORD in line for line in added)
    # 22.05 cannot spread within a node, so it is no use between them.
    assert any(line.startswith("PartitionName=gpu") and "LLN=YES" in line for line in added) == can
    settings = tuple(line for line in added if line.startswith("SelectTypeParameters="))
    partition = f"PartitionName=level Nodes=n[1-2]{' LLN=YES' if can else ''}"
    cluster = make_cluster(nodes=nodes, extra_conf=(*settings, partition))
    jobs = []
    for _ in range(4):
        jobs.append(submit(cluster, *SMALL, "--partition=level", command="sleep 600"))
        gpus_of(cluster, jobs[-1:])
    nodes_of = [
        cluster.run(["squeue", "-h", "-j", job, "-o", "%N"], check=True).stdout.strip() for job in jobs
    ]
    places = list(zip(nodes_of, gpus_of(cluster, jobs)))
    assert len(set(places)) == (4 if can else 1)


def _reason(cluster: Cluster, job: str) -> str:
    return cluster.run(["squeue", "-h", "-j", job, "-o", "%r"], check=True).stdout.strip()
