"""Where Slurm put a job is read from every version's own words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.demo import wait_for_job
from slurm_gpumem.slurm.state.running import Placement, placements


def job_text(gres: str, nodes: str = "n1") -> str:
    return (
        f"JobId=7 JobName=x\n   NumNodes=1\n     Nodes={nodes} CPU_IDs=0-1 Mem=8192 GRES={gres}\n   Power=\n"
    )


@pytest.mark.parametrize(
    ("gres", "expected"),
    [
        ("shard:12(IDX:0)", [Placement("n1", 0, "shard", 12)]),
        ("shard:a100:12(IDX:3)", [Placement("n1", 3, "shard", 12)]),
        ("shard:12(0/40,12/40,0/40,0/40)", [Placement("n1", 1, "shard", 12)]),
        ("shard:a100:12(12/40,0/40)", [Placement("n1", 0, "shard", 12)]),
        ("shard:3090:12(IDX:1)", [Placement("n1", 1, "shard", 12)]),
        ("shard:3090:12(0/24,12/24)", [Placement("n1", 1, "shard", 12)]),
        ("gpu:3090:2(IDX:0-1)", [Placement("n1", 0, "gpu", 1), Placement("n1", 1, "gpu", 1)]),
        ("gpu:1g.10gb:1(IDX:4),license:2", [Placement("n1", 4, "gpu", 1)]),
        ("mps:30(IDX:1)", [Placement("n1", 1, "mps", 30)]),
        ("mps:a100:30(30/100,0/100)", [Placement("n1", 0, "mps", 30)]),
        ("gpu:a100:3(IDX:0,2-3)", [Placement("n1", gpu, "gpu", 1) for gpu in (0, 2, 3)]),
        ("gpu:1(IDX:N/A)", []),
        ("", []),
    ],
)
def test_the_words_of_each_version_are_understood(gres: str, expected: list[Placement]) -> None:
    assert placements(job_text(gres)) == expected


def test_nodes_on_which_a_job_has_the_same_are_told_apart() -> None:
    text = job_text("shard:a100:12(12/40,0/40)").replace("Nodes=n1 ", "Nodes=n[1-2] ")
    assert placements(text) == [Placement("n1", 0, "shard", 12), Placement("n2", 0, "shard", 12)]


def test_a_waiting_job_is_nowhere() -> None:
    assert placements("JobId=7 JobName=x\n   JobState=PENDING NodeList=\n") == []


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    placements(text)
    placements(job_text(text))


@pytest.mark.slurm
def test_real_jobs_are_found_on_their_gpus(make_cluster: Any) -> None:
    cluster: Cluster = make_cluster()

    def where(gres: str) -> list[Placement]:
        argv = ["sbatch", "--parsable", "-o", "/dev/null", "--mem=4G", f"--gres={gres}", "--wrap=sleep 60"]
        job = cluster.run(argv, check=True).stdout.strip()
        wait_for_job(cluster, job, ["RUNNING"])
        return placements(cluster.run(["scontrol", "show", "job", "-d", job], check=True).stdout)

    assert where("shard:25") == [Placement("n1", 0, "shard", 25)]
    assert where("shard:20") == [Placement("n1", 1, "shard", 20)]
    assert where("gpu:2") == [Placement("n1", 2, "gpu", 1), Placement("n1", 3, "gpu", 1)]
