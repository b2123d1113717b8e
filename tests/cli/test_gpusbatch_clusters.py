"""gpusbatch on clusters of other shapes: packing, two sizes of GPUs, mps, no shards, out of memory."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_gpumem.devcluster.demo import wait_for_job
from slurm_gpumem.devcluster.spec import NodeSpec, default_nodes

pytestmark = pytest.mark.slurm


def test_five_shared_jobs_really_share_one_node_where_jobs_without_mem_take_it_whole(
    make_cluster: Any, desk_at: Any
) -> None:
    """CR_Core_Memory and a partition without default memory: plain shard jobs run one at a time."""
    bare = "PartitionName=bare Nodes=ALL Default=NO MaxTime=60 State=UP"
    desk = desk_at(make_cluster(nodes=default_nodes(1), extra_conf=(bare,)))
    desk.script("job.sh", "sleep 60", "#SBATCH -o /dev/null -p bare")
    plain = [
        desk.call("--parsable", "--gres=shard:8", "job.sh", command="sbatch").stdout.strip() for _ in range(2)
    ]
    wait_for_job(desk.cluster, plain[0], ["RUNNING"])
    assert desk.shown(plain[1])["JobState"] == "PENDING"
    desk.cluster.run(["scancel", *plain])
    jobs = [desk.submit("job.sh", "--gpu-mem", "8G") for _ in range(5)]
    for job in jobs:
        wait_for_job(desk.cluster, job, ["RUNNING"])
    running = desk.cluster.run(["squeue", "-h", "-t", "R", "-o", "%N"]).stdout.split()
    assert running == ["n1"] * 5


def test_of_two_sizes_a_job_lands_where_it_fits(make_cluster: Any, desk_at: Any) -> None:
    small = NodeSpec("n1", gpus=2, gpu_type="a100", gpu_memory_mib=40 * 1024)
    large = NodeSpec("n2", gpus=2, gpu_type="h200", gpu_memory_mib=140 * 1024)
    desk = desk_at(make_cluster(nodes=(small, large)))
    desk.script("job.sh", "sleep 60", "#SBATCH -o /dev/null")
    large_job = desk.submit("job.sh", "--gpu-mem", "60G")
    assert wait_for_job(desk.cluster, large_job, ["RUNNING"])["NodeList"] == "n2"
    assert desk.gres(large_job) == "shard:60"
    small_job = desk.submit("job.sh", "--gpu-mem", "12G", "--gpus=a100:1")
    assert wait_for_job(desk.cluster, small_job, ["RUNNING"])["NodeList"] == "n1"
    assert desk.gres(small_job) == "shard:a100:12"
    too_big = desk.call("job.sh", "--gpu-mem", "141G")
    assert "largest GPU of partition gpu (h200, 140 GiB)" in too_big.stderr
    typed = desk.call("job.sh", "--gpu-mem", "60G", "--gres=gpu:a100:1")
    assert (typed.returncode, "(a100, 40 GiB)" in typed.stderr) == (1, True)
    either = desk.call("--dry-run", "job.sh", "--model", "summary.txt", "--batch-size", "8")
    assert "shards of one GPU (a100: 40, h200: 140)" in either.stderr


def test_on_an_mps_cluster_the_same_memory_is_a_share_of_its_units(make_cluster: Any, desk_at: Any) -> None:
    desk = desk_at(make_cluster(nodes=default_nodes(1), gres="mps"))
    # 40 of a table's 40 GiB A100 is known by its type; the site's file says so for this one.
    desk.script(
        "job.sh",
        'echo "$CUDA_VISIBLE_DEVICES $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" > seen',
        "#SBATCH -o out --gres=gpu:1",
    )
    done = desk.call("job.sh", "--gpu-mem", "12G", "--parsable")
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    assert desk.gres(job) == "mps:30"
    assert "asking for 12 GiB (30 of 100 mps units on an a100)" in done.stderr
    assert wait_for_job(desk.cluster, job)["JobState"] == "COMPLETED"
    assert (desk.folder / "seen").read_text() == "0 30\n"


def test_a_partition_without_gpus_names_those_that_have_some(make_cluster: Any, desk_at: Any) -> None:
    nodes = (NodeSpec("n1"), NodeSpec("c1", gpus=0))
    cpu = "PartitionName=cpu Nodes=c1 Default=NO MaxTime=60 State=UP"
    whole = "PartitionName=nodes Nodes=n1 OverSubscribe=EXCLUSIVE MaxTime=60 State=UP"
    desk = desk_at(make_cluster(nodes=nodes, extra_conf=(cpu, whole)))
    done = desk.call("-p", "cpu", "job.sh", "--gpu-mem", "4G")
    assert (done.returncode, done.stdout) == (2, "")
    assert "partition cpu has no GPUs.\n" in done.stderr
    assert "Partitions with GPUs: gpu, nodes, whole" in done.stderr
    # A partition that gives whole nodes would let a shard job wait for ever.
    kept = desk.call("--parsable", "-H", "-p", "nodes", "job.sh", "--gpu-mem", "4G")
    assert "partition nodes gives whole nodes" in kept.stderr
    assert desk.gres(kept.stdout.strip()) == "gpu:1"


def test_a_partition_slurm_does_not_know_is_sbatchs_to_refuse(desk: Any) -> None:
    done = desk.call("-p", "nowhere", "job.sh", "--gpu-mem", "4G")
    plain = desk.call("-p", "nowhere", "job.sh", command="sbatch")
    assert done.returncode == plain.returncode
    assert done.stderr == (
        f"gpumem: goes to sbatch as it is: Slurm knows no partition nowhere\n{plain.stderr}"
    )


def test_a_gpu_type_the_partition_does_not_have_is_sbatchs_to_refuse(desk: Any) -> None:
    done = desk.call("--gres=gpu:v100:1", "job.sh", "--gpu-mem", "4G", "--dry-run")
    assert done.stderr == "gpumem: goes to sbatch as it is: partition gpu has no GPU of type v100\n"
    assert done.stdout.startswith("sbatch --gres=gpu:v100:1 ")
