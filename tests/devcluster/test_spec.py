"""A cluster that cannot be is refused before anything is started, with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_gpumem.devcluster.cluster import ClusterState, load, save
from slurm_gpumem.devcluster.config import Place, gres_conf, slurm_conf
from slurm_gpumem.devcluster.spec import ClusterSpec, Layout, NodeSpec, default_nodes
from slurm_gpumem.errors import DevClusterError, UsageError

STATE = Path("/somewhere")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"nodes": ()}, "at least one node"),
        ({"nodes": (NodeSpec("n1"), NodeSpec("n1"))}, "must differ"),
        ({"nodes": (NodeSpec("n1 x"),)}, "names are letters"),
        ({"nodes": (NodeSpec("n1", gpus=-1),)}, "must be positive"),
        ({"nodes": (NodeSpec("n1", gpu_memory_mib=100),)}, "at least 1 GiB"),
        ({"gres": "both"}, '"shard" or by "mps"'),
        ({"extra_conf": ("a=1\nb=2",)}, "not one line"),
        ({"state": Path("relative")}, "absolute"),
        ({"state": Path("/with blank")}, "blanks"),
        ({"state": Path("/" + "x" * 120)}, "too long"),
        ({"whole_nodes": ("n9",)}, "does not have"),
        ({"whole_nodes": ("n1", "n2")}, "would be empty"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ClusterSpec(**{"state": STATE, **fields})


def test_whole_gpus_can_have_nodes_of_their_own() -> None:
    spec = ClusterSpec(nodes=default_nodes(3), whole_nodes=("n3",), state=STATE)
    place = Place("host", "me", False, 1, {"n1": 2, "n2": 3, "n3": 4}, 5, ["/dev/tty0"] * 4)
    text = slurm_conf(spec, Layout(STATE), place, (22, 5))
    assert "PartitionName=gpu Nodes=n1,n2 " in text
    assert "PartitionName=whole Nodes=n3 " in text


def test_a_node_without_gpus_has_no_line_in_gres_conf() -> None:
    spec = ClusterSpec(nodes=(NodeSpec("c1", gpus=0), NodeSpec("n1", gpus=1)), state=STATE)
    place = Place("host", "me", False, 1, {"c1": 2, "n1": 3}, 5, ["/dev/tty0"])
    assert "c1" not in gres_conf(spec, place)


def test_the_state_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    spec = ClusterSpec(
        nodes=default_nodes(2), extra_conf=("KillWait=7",), slurm_root=Path("/tree"), state=tmp_path
    )
    save(Layout(tmp_path), ClusterState(spec))
    assert load(Layout(tmp_path)) == ClusterState(spec)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 99}', '{"schema": 1}'])
def test_a_broken_state_file_is_reported_not_guessed(tmp_path: Path, text: str) -> None:
    Layout(tmp_path).state_file.write_text(text)
    with pytest.raises(DevClusterError, match=r"devcluster\.json"):
        load(Layout(tmp_path))
