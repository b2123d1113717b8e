"""A cluster that cannot be is refused before anything is started, with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_gpumem.devcluster.cluster import ClusterState, load, save
from slurm_gpumem.devcluster.config import (
    Place,
    cgroup_conf,
    gres_conf,
    site_config,
    slurm_conf,
    slurmdbd_conf,
)
from slurm_gpumem.devcluster.spec import ClusterSpec, Layout, NodeSpec, Undivided, default_nodes
from slurm_gpumem.errors import DevClusterError, UsageError
from tests.support.kept import assert_kept

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


def test_files_of_every_kind_of_cluster_are_what_they_were() -> None:
    nodes = (
        NodeSpec("c1", gpus=0),
        NodeSpec("n1", gpus=1, instances=(Undivided("a100_1g.5gb", 3, 4864, "1g.5gb"),)),
    )
    specs = {
        "plain": ClusterSpec(state=STATE),
        "mps": ClusterSpec(nodes=default_nodes(1, gpus=1), gres="mps", mps_per_gpu=50, state=STATE),
        "mixed": ClusterSpec(nodes=nodes, accounting=True, hooks=True, cli_filter=True, state=STATE),
        "whole": ClusterSpec(nodes=default_nodes(3), whole_nodes=("n3",), cred_expire_s=5, state=STATE),
        "own lines": ClusterSpec(extra_conf=("KillWait=7", "NodeSet=a Nodes=n1"), state=STATE),
        "Lua": ClusterSpec(job_submit_lua="/a/job_submit.lua", slurm_root=Path("/tree"), state=STATE),
    }
    ports = {name: 2 + number for number, name in enumerate(("c1", "n1", "n2", "n3"))}
    written = {}
    for name, spec in specs.items():
        for root, version in ((False, (22, 5)), (True, (24, 11)), (True, (26, 5))):
            place = Place("host", "me", root, 1, ports, 9, [f"/dev/tty{number}" for number in range(12)])
            texts = [slurm_conf(spec, Layout(STATE), place, version), gres_conf(spec, place)]
            texts += [cgroup_conf(version), slurmdbd_conf(Layout(STATE), place)]
            texts.append(site_config(spec, Layout(STATE)))
            written[f"{name} {version} {root}"] = "\n".join(texts)
    assert_kept(Path(__file__).with_name("files.json"), written)


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


def test_slurm_before_24_05_knows_no_disabled_cgroups() -> None:
    # slurmd of Ubuntu 24.04 (23.11.4) ends with: cannot find cgroup plugin for disabled
    assert [cgroup_conf(version) for version in ((22, 5, 8), (23, 11, 4), (24, 5, 0))] == [
        "CgroupPlugin=cgroup/v1\n", "CgroupPlugin=cgroup/v1\n", "CgroupPlugin=disabled\n",
    ]  # fmt: skip
