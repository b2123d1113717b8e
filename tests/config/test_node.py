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


def test_the_site_chooses_modes_by_partition() -> None:
    config = node_config_from({"node": {"mps_by_partition": {"course": "shared", "old": "off"}}}, "x")
    assert config.mps_for() == "per-user"
    assert config.mps_for("course") == "shared"
    assert config.mps_for("old") == "off"
    assert config.mps_anywhere() == {"per-user", "shared", "off"}


def test_the_size_of_a_shard_comes_from_the_sharing_table() -> None:
    config = node_config_from({"sharing": {"shard_mib": 512}, "node": {"headroom_mib": 100}}, "x")
    assert config.job_mib(4) == 2148


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mps", "mps"),
        ("headroom_mib", -1),
        ("spool", "relative/path"),
        ("prometheus_users", "yes"),
        ("mps_by_partition", {"a": "b"}),
        ("mps_by_partition", "shared"),
        ("colour", 1),
        ("shard_mib", 5),
        ("notes", "x"),
    ],
)
def test_a_wrong_value_is_noted_and_left_at_its_default(key: str, value: Any) -> None:
    config = node_config_from({"node": {key: value, "driver_limit": True}}, "site.toml")
    assert config.driver_limit
    assert len(config.notes) == 1
    assert config.notes[0].startswith("site.toml: node")
    assert key in config.notes[0]
    assert config.notes[0].endswith(("(the default is used)", "(ignored)"))
    assert NodeConfig(driver_limit=True, notes=config.notes) == config


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("interval_s", "1"),
        ("interval_s", 0),
        ("interval_s", True),
        ("mps_control", "nvidia-cuda-mps-control"),
    ],
)
def test_a_wrong_constant_of_the_dev_cluster_is_noted_too(key: str, value: Any) -> None:
    config = node_config_from({"devcluster": {key: value, "grace_s": 7, "index": "/i"}}, "site.toml")
    assert NodeConfig(grace_s=7.0, notes=config.notes) == config
    assert config.notes[0].startswith(f"site.toml: devcluster.{key} must be")


def test_slurms_commands_find_the_cluster_of_the_sites_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    file, conf = tmp_path / "gpumem.toml", tmp_path / "slurm.conf"
    assert load_node_config(str(file)).slurm_env == {}
    conf.touch()
    assert load_node_config(str(file)).slurm_env == {"SLURM_CONF": str(conf)}
    monkeypatch.setenv("SLURM_CONF", "/etc/other/slurm.conf")
    assert load_node_config(str(file)).slurm_env == {}


@given(
    st.dictionaries(
        st.text(max_size=12), st.one_of(st.none(), st.integers(), st.text(), st.booleans(), st.floats())
    )
)
def test_no_table_makes_a_hook_fail(table: Any) -> None:
    assert isinstance(node_config_from({"node": table}, "x"), NodeConfig)
