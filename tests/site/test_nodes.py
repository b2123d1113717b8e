from __future__ import annotations

from pathlib import Path
from typing import Any, List, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.errors import SlurmError, UsageError
from slurm_gpumem.site.nodes import (
    GpuGroup,
    ask_cluster,
    ask_nvidia_smi,
    parse_descriptions,
    parse_nvidia_smi,
    type_of,
    with_host,
)
from slurm_gpumem.slurm.node_names import expand_names, fold_names


def test_a_description_names_nodes_type_count_and_memory() -> None:
    groups = parse_descriptions(["n[1-4]=a100:4:40G", "n[1-4]=v100:2:16384M", "h200:8:143771M"], "here")
    assert [(group.nodes, group.gpus) for group in groups] == [
        ("n[1-4]", (GpuGroup("a100", 4, 40960), GpuGroup("v100", 2, 16384))),
        ("here", (GpuGroup("h200", 8, 143771),)),
    ]
    assert groups[0].mixed
    assert not groups[1].mixed


@pytest.mark.parametrize("kind", ["3090", "2080ti", "1g.10gb"])
def test_a_type_may_begin_with_a_digit(kind: str) -> None:
    (group,) = parse_descriptions([f"n1={kind}:4:24G"], "here")
    assert group.gpus == (GpuGroup(kind, 4, 24576),)


@pytest.mark.parametrize(
    "text", ["a100", "a100:4", "a100:0:40G", "a100:x:40G", "4:a100:40G", "n1=a100:4:much", ""]
)
def test_a_wrong_description_shows_a_right_one(text: str) -> None:
    with pytest.raises(UsageError, match=r"a100:4:40G|memory size"):
        parse_descriptions([text], "here")


def test_a_type_given_twice_for_the_same_nodes_is_refused() -> None:
    with pytest.raises(UsageError, match="already given"):
        parse_descriptions(["a100:4:40G", "a100:2:40G"], "here")


def test_a_folder_on_the_path_that_may_not_be_entered_is_no_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A program that may not be run fails in the same way.
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ask_nvidia_smi("here") is None


def test_nvidia_smi_lines_become_types_with_the_smallest_memory_of_each() -> None:
    text = "NVIDIA A100-SXM4-40GB, 40960\nNVIDIA A100-SXM4-40GB, 40536\nNVIDIA H200, 143771\n"
    group = parse_nvidia_smi(text, "here")
    assert group is not None
    assert group.gpus == (GpuGroup("a100", 2, 40536), GpuGroup("h200", 1, 143771))
    assert parse_nvidia_smi("No devices were found\n", "here") is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("NVIDIA TITAN V", "titanv"),
        ("NVIDIA L40S", "l40s"),
    ],
)
def test_the_driver_s_name_becomes_a_slurm_type(name: str, kind: str) -> None:
    assert type_of(name) == kind


def _node(name: str, gres: str, **fields: str) -> Any:
    return {
        "NodeName": name,
        "Gres": gres,
        "Partitions": "gpu",
        "CPUTot": "64",
        "RealMemory": "512000",
        **fields,
    }


def test_nodes_that_are_alike_become_one_group() -> None:
    nodes = [_node("n1", "gpu:a100:4(S:0-1)"), _node("n2", "gpu:a100:4(S:0-1)"), _node("c1", "(null)")]
    (group,) = ask_cluster(nodes, {"a100": 40960}.get, "shard", 1024)
    assert (group.nodes, group.gpus, group.cpus) == ("n[1-2]", (GpuGroup("a100", 4, 40960),), 64)


def test_gpus_that_are_divided_already_stay_so_even_of_an_unknown_type() -> None:
    (group,) = ask_cluster([_node("n1", "gpu:odd:4,shard:odd:120")], {}.get, "shard", 1024)
    assert group.gpus == (GpuGroup("odd", 4, 30720, 30),)
    (group,) = ask_cluster([_node("n1", "gpu:4,shard:120")], {}.get, "shard", 1024)
    assert group.gpus == (GpuGroup("", 4, 30720, 30),)


def test_an_unknown_type_is_an_error_that_says_how_to_give_its_memory() -> None:
    with pytest.raises(SlurmError, match="--gpu 'n1=odd:4:40G'"):
        ask_cluster([_node("n1", "gpu:odd:4")], {}.get, "shard", 1024)


def test_a_described_group_takes_cpus_memory_and_partitions_from_the_cluster() -> None:
    (described,) = parse_descriptions(["n[1-2]=a100:4:40G"], "here")
    known = [_node("n1", ""), _node("n2", "", CPUTot="32", Partitions="gpu,long")]
    group = with_host(described, known, ["n1", "n2"])
    assert (group.cpus, group.memory_mib, group.partitions) == (32, 512000, ("gpu", "long"))


stems = st.sampled_from(["n", "gpu-", "a", "node.x"])
numbers = st.sampled_from(["", "1", "2", "3", "7", "9", "10", "11", "01", "02", "007", "008", "100"])


@given(st.lists(st.tuples(stems, numbers), min_size=1, max_size=12, unique=True))
def test_folded_names_expand_to_the_same_nodes(parts: List[Tuple[str, str]]) -> None:
    listed = [stem + number for stem, number in parts]
    assert sorted(expand_names(fold_names(listed))) == sorted(listed)


@pytest.mark.slurm
def test_slurm_itself_reads_folded_names_so(cluster: Cluster) -> None:
    text = "n[1-2,9-10],gpu-[07-08],login,r[1-2]n[3,5]"
    done = cluster.run(["scontrol", "show", "hostnames", text], check=True)
    assert done.stdout.split() == expand_names(text)
    assert (
        fold_names(["n1", "n2", "n9", "n10", "gpu-07", "gpu-08", "login"]) == "n[1-2,9-10],gpu-[07-08],login"
    )


@pytest.mark.parametrize("text", ["n[1-", "n[a-b]", "n[]", "n[1-9999999]"])
def test_a_wrong_list_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"like n?\[1-4,7\]"):
        expand_names(text)
