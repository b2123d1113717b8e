from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.config.node import NodeConfig, load_node_config, node_config_from


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    assert load_node_config(str(tmp_path / "missing.toml")) == NodeConfig()


def test_a_broken_file_means_the_defaults_and_a_note(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[node\nmode=")
    config = load_node_config(str(tmp_path / "a.toml"))
    assert config.mps == "per-user"
    assert "not valid TOML" in config.notes[0]


def test_the_site_chooses_modes_by_partition_and_first_of_all_by_gpu() -> None:
    table = {"mps_by_partition": {"course": "shared"}, "mps_by_gpu": {"t4": "timeslice", "A100": "off"}}
    config = node_config_from({"node": table}, "x")
    assert config.mps_for("NVIDIA H200") == "per-user"
    assert config.mps_for("NVIDIA H200", "course") == "shared"
    assert config.mps_for("Tesla T4", "course") == "timeslice"
    assert config.mps_for("NVIDIA A100-SXM4-40GB", "gpu") == "off"
    assert config.mps_anywhere() == {"per-user", "shared", "timeslice", "off"}


def test_the_size_of_a_shard_comes_from_the_sharing_table() -> None:
    config = node_config_from({"sharing": {"shard_mib": 512}, "node": {"headroom_mib": 100}}, "x")
    assert config.job_mib(4) == 2148


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mps", "mps"),
        ("interval_s", "1"),
        ("interval_s", 0),
        ("interval_s", True),
        ("headroom_mib", -1),
        ("spool", "relative/path"),
        ("limits", "yes"),
        ("mps_by_gpu", {"a": "b"}),
        ("mps_by_partition", "shared"),
        ("slurm_env", 3),
        ("colour", 1),
        ("mps_control", "nvidia-cuda-mps-control"),
        ("shard_mib", 5),
        ("notes", "x"),
    ],
)
def test_a_wrong_value_is_noted_and_left_at_its_default(key: str, value: Any) -> None:
    config = node_config_from({"node": {key: value, "grace_s": 7}}, "site.toml")
    assert config.grace_s == 7
    assert len(config.notes) == 1
    assert config.notes[0].startswith("site.toml: node")
    assert key in config.notes[0]
    assert config.notes[0].endswith(("(the default is used)", "(ignored)"))
    assert NodeConfig(grace_s=7.0, notes=config.notes) == config


@given(
    st.dictionaries(
        st.text(max_size=12), st.one_of(st.none(), st.integers(), st.text(), st.booleans(), st.floats())
    )
)
def test_no_table_makes_a_hook_fail(table: Any) -> None:
    assert isinstance(node_config_from({"node": table}, "x"), NodeConfig)
