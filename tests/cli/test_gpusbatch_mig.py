"""gpusbatch on a cluster with MIG instances: one line as on shards, jobs get their instance."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slurm_gpumem.devcluster.demo import wait_for_job
from slurm_gpumem.devcluster.spec import NodeSpec, Undivided
from slurm_gpumem.slurm.client import parse_version
from slurm_gpumem.slurm.state.nodes import GPU_TYPE_CAN_CHANGE
from slurm_gpumem.slurm.state.running import placements

pytestmark = pytest.mark.slurm


ONLY_MIG = NodeSpec("n1", gpus=0, instances=(Undivided("1g.18gb", 3), Undivided("2g.35gb", 1)), cpus=16)
MIXED = NodeSpec(
    "n2", gpus=1, gpu_type="h200", gpu_memory_mib=139 * 1024, instances=(Undivided("5g.99gb", 1),)
)


@pytest.fixture(scope="module")
def mig(make_module_cluster: Any) -> Any:
    lines = (
        "PartitionName=mig Nodes=n1 MaxTime=60 DefMemPerCPU=100 State=UP",
        "PartitionName=mixed Nodes=n1,n2 MaxTime=60 DefMemPerCPU=100 State=UP",
        "PartitionName=types Nodes=n4,n5 MaxTime=60 DefMemPerCPU=100 State=UP",
        "PartitionName=strange Nodes=n3 MaxTime=60 DefMemPerCPU=100 State=UP",
    )
    strange = NodeSpec("n3", gpus=0, instances=(Undivided("5g.99gb", 1),))
    # Undivided GPUs of two sizes.
    small, large = (
        NodeSpec(n, gpus=0, instances=(Undivided(kind, 1),)) for n, kind in (("n4", "v100"), ("n5", "a100"))
    )
    return make_module_cluster(nodes=(ONLY_MIG, MIXED, strange, small, large), extra_conf=lines)


def test_a_job_gets_the_smallest_instance_that_holds_it_and_one_line_says_so(mig: Any, desk_at: Any) -> None:
    desk = desk_at(mig)
    desk.script("job.sh", "sleep 30", "#SBATCH -o /dev/null")
    done = desk.call("--parsable", "-p", "mig", "job.sh", "--gpu-mem", "10G")
    assert done.stderr.splitlines() == [
        "gpumem: asking for 16 GiB (1g.18gb, the smallest MIG profile that holds it) as given by hand"
    ]
    desk.jobs.append(done.stdout.strip())
    assert desk.gres(desk.jobs[0]) == "gpu:1g.18gb:1"
    large = desk.submit("-p", "mig", "-G1", "job.sh", "--gpu-mem", "20G")
    assert desk.gres(large) == "gpu:2g.35gb:1"
    for job in (desk.jobs[0], large):
        wait_for_job(mig, job, ["RUNNING"])
    # The second waits for the only 2g.35gb instead of taking a smaller one.
    second = desk.submit("-p", "mig", "job.sh", "--gpu-mem", "20G")
    assert desk.shown(second)["JobState"] == "PENDING"
    desk.tidy()


def test_an_estimate_on_an_instance_is_marked_as_not_measured_there(mig: Any, desk_at: Any) -> None:
    desk = desk_at(mig)
    done = desk.call(
        "--dry-run", "--json", "-p", "mig", "job.sh", "--model", "summary.txt", "--batch-size", "64"
    )
    found = json.loads(done.stdout)
    assert (found["gres"], found["gpu"], found["instance_mib"]) == ("gpu:1g.18gb:1", "1g.18gb", 16_384)
    assert any("not measured on MIG" in warning for warning in found["warnings"])


def test_an_unknown_profile_is_named_and_never_asked_for(mig: Any, desk_at: Any) -> None:
    desk = desk_at(mig)
    alone = desk.call("-p", "strange", "job.sh", "--gpu-mem", "4G")
    assert alone.returncode == 2
    assert "MIG profile 5g.99gb, whose memory is not known" in alone.stderr
    assert "Nothing was submitted" in alone.stderr
    beside = desk.call("--dry-run", "-p", "mixed", "job.sh", "--gpu-mem", "4G")
    assert "5g.99gb, whose memory is not known" in beside.stderr
    assert "it is left out" in beside.stderr
    assert "shard:4" in beside.stdout


def test_any_gpu_is_one_that_holds_the_job(mig: Any, desk_at: Any) -> None:
    desk = desk_at(mig)
    words = ("-p", "types", "job.sh", "--gpu-mem", "20G")
    job = desk.submit("-G1", *words, "--gpu", "any")
    assert desk.gres(job) == "gpu:a100:1"
    assert desk.shown(job).get("TresPerJob") in (None, "(null)")
    wait_for_job(mig, job, ["RUNNING", "COMPLETED"])
    said = desk.call("--dry-run", *words, "--gpu", "any")
    assert "asking for a whole GPU (gpu:a100:1): it fits a100 only, not v100" in said.stderr
    plain = desk.call("--dry-run", *words)
    assert "it may land on v100: --gpu any asks only for GPUs that hold it" in plain.stderr


def test_a_waiting_job_whose_type_is_changed_gets_that_type_alone_from_slurm_23_02_on(
    mig: Any, desk_at: Any
) -> None:
    desk = desk_at(mig)
    desk.script("job.sh", "sleep 60")
    job = desk.submit("-H", "-p", "mig", "job.sh", "--gpu-mem", "10G")
    changed = mig.run(["scontrol", "update", f"JobId={job}", "Gres=gpu:2g.35gb:1"])
    assert changed.returncode == 0, changed.stderr
    assert desk.gres(job) == "gpu:2g.35gb:1"
    mig.run(["scontrol", "release", job], check=True)
    wait_for_job(mig, job, ["RUNNING"])
    shown = mig.run(["scontrol", "-d", "show", "job", job], check=True).stdout
    version = parse_version(mig.run(["sinfo", "--version"], check=True).stdout)
    assert len(placements(shown)) == (1 if version >= GPU_TYPE_CAN_CHANGE else 2)
    desk.tidy()
