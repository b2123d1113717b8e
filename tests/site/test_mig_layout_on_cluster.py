"""The MIG layout of a node is changed while a job waits: doctor names the job, and its command lets it go."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, Tuple

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import NodeSpec, Undivided
from slurm_gpumem.slurm.nodes import GPU_TYPE_CAN_CHANGE
from tests.support.slurm_daemons import restart_slurmctld
from tests.support.waiting import until
from tests.support.whole_site import GPUMEM

pytestmark = pytest.mark.slurm

NODE = NodeSpec("n1", gpus=0, instances=(Undivided("1g.18gb", 3, 16_384), Undivided("2g.35gb", 1, 33_280)))


def waiting_for_nothing(cluster: Cluster) -> List[Dict[str, Any]]:
    done = cluster.run([GPUMEM, "doctor", "--json"], timeout_s=120)
    assert done.stdout, done.stderr
    return [one for one in json.loads(done.stdout)["findings"] if one["check"] == "mig-waiting"]


def version(cluster: Cluster) -> Tuple[int, ...]:
    said = cluster.run(["scontrol", "--version"], check=True).stdout.split()[-1]
    return tuple(map(int, said.split(".")[:3]))


def test_doctor_names_jobs_whose_profile_is_gone_and_how_they_get_another(
    make_module_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_module_cluster(nodes=(NODE,))
    submit = ["sbatch", "--parsable", "--mem=64", "-o", "/dev/null", "--begin=now+1hour"]
    gone, stays = (
        cluster.run([*submit, f"--gres=gpu:{kind}:1", "--wrap", "true"], check=True).stdout.strip()
        for kind in ("1g.18gb", "2g.35gb")
    )
    assert waiting_for_nothing(cluster) == []
    for path in (cluster.layout.slurm_conf, cluster.layout.conf / "gres.conf"):
        path.write_text(path.read_text().replace("1g.18gb", "1g.35gb"))
    cluster.run(["scontrol", "reconfigure"], check=True)
    can_change = version(cluster) >= GPU_TYPE_CAN_CHANGE
    # 22.05 reads other types only when it starts.
    controller = None if can_change else restart_slurmctld(cluster)
    try:
        until(lambda: "gpu:1g.35gb:3" in cluster.run(["scontrol", "show", "node", "n1"]).stdout)
        (found,) = waiting_for_nothing(cluster)
    finally:
        if controller is not None:
            controller.terminate()
            controller.wait(timeout=120)
    assert found["what"].endswith(f"waiting for it: {gone}")
    assert stays not in found["what"].split()
    if not can_change:
        assert found["fix"].startswith("cancel them")
        return
    words = found["fix"].split(" with ")[0].split()
    assert words == ["scontrol", "update", f"jobid={gone}", "gres=gpu:1g.35gb:1"]
    cluster.run(words, check=True)
    assert waiting_for_nothing(cluster) == []
    cluster.run(["scontrol", "update", f"jobid={gone}", "starttime=now"], check=True)
    until(lambda: gone not in cluster.run(["squeue", "-h", "-o", "%i"], check=True).stdout.split())
