"""A cluster's GPUs from what scontrol says, kept for a while, and asked again when it changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurm_gpumem.errors import SlurmError
from slurm_gpumem.slurm.client import SlurmMissingError, SlurmUnreachableError
from slurm_gpumem.slurm.state import nodes as discovering
from slurm_gpumem.slurm.state.nodes import (
    Cluster,
    cluster_of,
    discover_cluster,
    parse_records,
    units_in_partitions,
)
from tests.support.fake_slurm import FakeSlurm

PARTITIONS = (
    "PartitionName=gpu AllowGroups=ALL Default=YES Nodes=n[1-3] OverSubscribe=NO State=UP\n"
    "PartitionName=big AllowGroups=ALL Default=NO Nodes=n3 OverSubscribe=EXCLUSIVE State=UP\n"
)


def node(name: str, gres: str, partitions: str = "gpu", more: str = "") -> str:
    return (
        f"NodeName={name} Arch=x86_64 CoresPerSocket=32 CPUAlloc=0 CPUEfctv=60 CPUTot=64 CPULoad=0.75 "
        f"AvailableFeatures=(null) Gres={gres} NodeAddr={name} Version=23.11.4 OS=Linux 6.1 #1 SMP  "
        f"RealMemory=512000 AllocMem=0 MemSpecLimit=12000 State=IDLE ThreadsPerCore=2 "
        f"Partitions={partitions} BootTime=None CfgTRES=cpu=64 {more}"
    )


def parse_cluster(nodes: str, partitions: str) -> Cluster:
    return cluster_of(parse_records(nodes, "NodeName"), parse_records(partitions, "PartitionName"))


def test_shards_are_counted_per_gpu_by_type() -> None:
    text = "\n".join(
        [
            node("n1", "gpu:a100:4(S:0-1),shard:a100:160(S:0-1)"),
            node("n2", "gpu:a100:4(S:0-1),shard:a100:160(S:0-1)"),
            node("n3", "gpu:h200:2,gpu:a100:2,shard:h200:280,shard:a100:80,lustre:1", "gpu,big"),
            node("c1", "(null)", "cpu"),
        ]
    )
    found = parse_cluster(text, PARTITIONS)
    assert found.default_partition == "gpu"
    assert found.exclusive_partitions == ("big",)
    assert found.version == (23, 11, 4)
    groups = [(g.gpu_type, g.gpus, g.node_gpus, g.shards_per_gpu, g.nodes) for g in found.gpu_nodes]
    assert groups == [("a100", 4, 4, 40, 2), ("h200", 2, 4, 140, 1), ("a100", 2, 4, 40, 1)]
    assert {(g.cpus, g.memory_mib, g.threads_per_core) for g in found.gpu_nodes} == {(60, 500000, 2)}
    assert [g.gpu_type for g in found.in_partitions(["big"])] == ["h200", "a100"]


def test_a_partition_of_whole_nodes_is_known_by_old_and_new_words() -> None:
    new = "PartitionName=big Default=NO Exclusive=NODE Nodes=n3 OverSubscribe=NO State=UP\n"
    assert parse_cluster("", new).exclusive_partitions == ("big",)
    assert parse_cluster("", new.replace("NODE", "USER")).exclusive_partitions == ()


def test_shards_and_mps_without_a_type_are_spread_over_the_gpus() -> None:
    (shared,) = parse_cluster(node("n1", "gpu:4,shard:160"), PARTITIONS).gpu_nodes
    assert (shared.gpu_type, shared.units_per_gpu("shard"), shared.units_per_gpu("mps")) == (None, 40, 0)
    (mps,) = parse_cluster(node("n1", "gpu:a100:4,mps:400"), PARTITIONS).gpu_nodes
    assert (mps.units_per_gpu("shard"), mps.units_per_gpu("mps")) == (0, 100)


def test_a_reason_that_looks_like_a_field_misleads_nobody() -> None:
    (group,) = parse_cluster(
        node("n1", "gpu:a100:4", more="Reason=Gres=gpu:99 Partitions=x [root]"), PARTITIONS
    ).gpu_nodes
    assert (group.gpus, group.partitions) == (4, ("gpu",))


def test_gpu_types_that_begin_with_a_digit_are_types() -> None:
    text = "\n".join(
        [node("n1", "gpu:3090:2(S:0),shard:3090:48(S:0)"), node("n2", "gpu:1g.10gb:7,gpu:2080ti:1")]
    )
    groups = [(g.gpu_type, g.gpus, g.shards_per_gpu) for g in parse_cluster(text, PARTITIONS).gpu_nodes]
    assert groups == [("3090", 2, 24), ("1g.10gb", 7, 0), ("2080ti", 1, 0)]


def test_the_most_shares_of_any_node_count_by_type() -> None:
    said = "gpu:a100:4(S:0-1),shard:a100:160\ngpu:a100:2,shard:a100:20\ngpu:3090:2,shard:3090:48\n(null)\n"
    slurm = FakeSlurm({"sinfo -p gpu,big -o %G": said})
    assert units_in_partitions(slurm, ("gpu", "big"), "shard") == {"a100": 40, "3090": 24}


def test_a_cluster_is_asked_once_and_then_known(home: Path) -> None:
    slurm = FakeSlurm(
        {
            "scontrol -o show node": node("n1", "gpu:a100:4,shard:a100:160"),
            "scontrol show partition": PARTITIONS,
        }
    )
    first, warnings = discover_cluster(client=slurm)
    assert (first.gpu_nodes[0].shards_per_gpu, warnings) == (40, ())
    assert discover_cluster(client=FakeSlurm({})) == (first, ())


def test_a_cluster_of_clusters_is_asked_by_its_name(home: Path) -> None:
    slurm = FakeSlurm(
        {"scontrol --clusters=east show node": "", "scontrol --clusters=east show partition": ""}
    )
    with pytest.raises(SlurmError, match="names no partition"):
        discover_cluster("east", client=slurm)


def test_records_keep_values_with_blanks_and_believe_the_first_of_a_key() -> None:
    line = (
        "NodeName=n1 Gres=gpu:a100:4(S:0-1),shard:160 OS=Linux 6.1 #1 SMP RealMemory=64000 Reason=Gres=none x"
    )
    (record,) = parse_records(line + "\nnothing here\n", "NodeName")
    assert record["Gres"] == "gpu:a100:4(S:0-1),shard:160"
    assert record["OS"] == "Linux 6.1 #1 SMP"
    assert record["RealMemory"] == "64000"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def use(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)


@pytest.mark.slurm
def test_a_live_cluster_tells_its_gpus(cluster: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(cluster, monkeypatch)
    found, warnings = discover_cluster()
    assert warnings == ()
    (group,) = found.gpu_nodes
    assert (group.gpu_type, group.gpus, group.shards_per_gpu, group.nodes) == ("a100", 4, 40, 2)
    assert found.default_partition == "gpu"
    assert found.version >= (22, 5, 0)


@pytest.mark.slurm
def test_the_second_question_is_answered_from_the_cache(
    cluster: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(cluster, monkeypatch)
    first, _ = discover_cluster()
    monkeypatch.setenv("PATH", str(home))  # nobody to ask any more
    assert discover_cluster()[0] == first
    with pytest.raises(SlurmMissingError):
        discover_cluster(max_age_s=-1)


@pytest.mark.slurm
def test_a_changed_configuration_is_seen_at_once(
    make_cluster: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(make_cluster(), monkeypatch)
    discover_cluster()
    import os

    os.utime(os.environ["SLURM_CONF"], (1, 1))
    monkeypatch.setenv("PATH", str(home))
    with pytest.raises(SlurmMissingError):
        discover_cluster()


@pytest.mark.slurm
def test_a_mute_controller_is_replaced_by_what_it_said_before(
    make_cluster: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = make_cluster()
    use(own, monkeypatch)
    first, _ = discover_cluster()
    own.stop()
    again, warnings = discover_cluster(timeout_s=0.3, max_age_s=-1)
    assert again == first
    assert "using what it said 0 minutes ago" in warnings[0]
    for file in (home / "cache" / "gpumem").iterdir():
        file.unlink()
    with pytest.raises(SlurmUnreachableError, match="no answer from the Slurm controller"):
        discover_cluster(timeout_s=0.3)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"schema": 1}', '{"schema": 99}', "\x00"])
def test_a_broken_cache_is_as_good_as_none(home: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    monkeypatch.setenv("PATH", str(home))
    path = Path(discovering._cache_path(None))
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(SlurmMissingError):
        discover_cluster()


def test_a_cache_survives_the_round_trip(home: Path) -> None:
    text = node("n1", "gpu:a100:4,shard:a100:160", "gpu,big", "ActiveFeatures=a100,ib Weight=7")
    cluster = parse_cluster(text, PARTITIONS)
    assert (cluster.gpu_nodes[0].features, cluster.gpu_nodes[0].weight) == (("a100", "ib"), 7)
    path = discovering._cache_path("east")
    discovering._write_cache(path, cluster)
    assert discovering._read_cache(path)[0] == cluster
    assert json.loads(Path(path).read_text())["schema"] == 2


def test_a_home_that_cannot_be_written_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    discovering._write_cache(discovering._cache_path(None), parse_cluster(node("n1", "gpu:1"), PARTITIONS))
