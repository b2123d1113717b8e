"""Slurm's words for GPUs and shares, of nodes, jobs and options."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.devcluster.demo import wait_for_job
from slurm_gpumem.devcluster.spec import default_nodes
from slurm_gpumem.slurm.client import Commands
from slurm_gpumem.slurm.gres import Held, held_by, parse_gpus, parse_gres, replaced, shares, units_by_type
from slurm_gpumem.slurm.state.nodes import units_in_partitions
from slurm_gpumem.slurm.state.queue import find_job, parse_slurm_job, slurm_job_command
from slurm_gpumem.slurm.state.running import Placement, placements


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("gpu:a100:4(S:0-1),shard:a100:160", [("gpu", "a100", 4), ("shard", "a100", 160)]),
        ("gpu", [("gpu", None, 1)]),
        ("gpu:a100=2", [("gpu", "a100", 2)]),
        ("gres:gpu:a100:1", [("gpu", "a100", 1)]),
        ("gpu:nvidia_a100-sxm4-40gb:8(S:0,2)", [("gpu", "nvidia_a100-sxm4-40gb", 8)]),
        ("gpu:3090:2(S:0-1),shard:3090:12", [("gpu", "3090", 2), ("shard", "3090", 12)]),
        ("gpu:1g.10gb", [("gpu", "1g.10gb", 1)]),
        ("gres/shard:3090=12", [("shard", "3090", 12)]),
        ("gpu:3090", [("gpu", None, 3090)]),
        ("gres/gpu=4,gres/shard=0", [("gpu", None, 4), ("shard", None, 0)]),
        ("cpu=64,gres/gpu:3090=1", [("cpu", None, 64), ("gpu", "3090", 1)]),
        ("gpu:a100:4:no_consume", []),
        ("gpu::2", []),
        ("lustre:2K", [("lustre", None, 2048)]),
        ("(null)", []),
        ("", []),
    ],
)
def test_every_way_to_write_a_gres_is_read(text: str, entries: Any) -> None:
    assert parse_gres(text) == entries


@given(st.text(max_size=80))
def test_no_gres_text_breaks_the_reading(text: str) -> None:
    for name, _, count in parse_gres(text):
        assert name
        assert count >= 0


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("a100:1,h200:2", [("a100", 1), ("h200", 2)]),
        ("a100", [("a100", 1)]),
        ("1g.10gb:1", [("1g.10gb", 1)]),
        ("0", []),
        ("", []),
    ],
)
def test_the_values_of_gpus_are_read(text: str, gpus: Any) -> None:
    assert parse_gpus(text) == gpus


def test_other_gres_in_a_request_stay() -> None:
    assert replaced("gres:shard:a100:12,gres:license:2", "gpu:a100:1") == "gpu:a100:1,license:2"
    assert held_by("gres/license:2,gres/shard:a100:12") == Held("shard", "a100", 12)
    assert held_by("gres/gpu:1,gres/shard:2") is None
    assert replaced("gres/shard:3090:12,gres/license=2", "gpu:3090:1") == "gpu:3090:1,license:2"
    assert held_by("gres/shard:3090:12") == Held("shard", "3090", 12)


@pytest.mark.parametrize(
    ("request_", "count"),
    [
        ("gres:shard:12", 12),
        ("gres/shard:3090=12", 12),
        ("gres:mps:30,gres:license:2", 30),
        ("gres/shard:a100:2,gres/shard:h100:3", 5),
        ("gres:gpu:1", None),
        ("N/A", None),
        ("", None),
    ],
)
def test_a_requests_shares_are_counted(request_: str, count: Any) -> None:
    assert shares(request_) == count


def test_a_nodes_shares_are_counted_by_type() -> None:
    assert units_by_type("gpu:3090:2,gpu:1g.10gb:4,shard:3090:48,shard:1g.10gb:36", "shard") == {
        "3090": 24,
        "1g.10gb": 9,
    }


@pytest.mark.slurm
def test_jobs_on_gpus_whose_type_begins_with_a_digit_are_read_back(make_cluster: Any) -> None:
    kind = "1g.10gb"
    cluster = make_cluster(nodes=default_nodes(1, gpus=2, gpu_type=kind, gpu_memory_mib=24 * 1024))
    slurm = Commands(cluster.env)
    assert units_in_partitions(slurm, ("gpu",), "shard") == {kind: 24}
    argv = ["sbatch", "--parsable", "-o", "/dev/null", "--mem=4G", f"--gres=shard:{kind}:12"]
    number = cluster.run([*argv, "--wrap=sleep 60"], check=True).stdout.strip()
    wait_for_job(cluster, number, ["RUNNING"])
    job = find_job(slurm, number)
    assert job is not None
    assert held_by(job.request) == Held("shard", kind, 12)
    sampled = parse_slurm_job(slurm.run(slurm_job_command(int(number))), int(number))
    assert sampled is not None
    assert sampled.shards == 12
    text = slurm.run(["scontrol", "show", "job", "-d", number])
    assert placements(text) == [Placement("n1", 0, "shard", 12)]
