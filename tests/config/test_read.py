"""One reader: everything that is wrong is found, and whoever reads decides whether that is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.config.paths import beside_site_config, site_config_path, user_config_path
from slurm_gpumem.config.read import read_file, read_tables
from slurm_gpumem.config.schema import NODE, SECTIONS, SHARING
from slurm_gpumem.errors import ConfigError

NAMES = [name for section in SECTIONS for name in section.names]
WRONG = {
    "sharing": {"mode": "off", "shard_mib": 512, "partition": {"gpu": {"max_slowdown": 0, "x": 1}}},
    "node": {"grace-s": 7, "spool": "here", "mps_by_gpu": {"T4": "fast"}},
    "nodes": {},
}


def test_right_values_are_kept_and_every_wrong_one_is_named() -> None:
    reading = read_tables(WRONG, "a.toml", SECTIONS)
    assert reading.table(SHARING) == {"shard_mib": 512, "partition": {"gpu": {}}}
    assert reading.table(NODE) == {"grace_s": 7.0}
    assert [(problem.table, problem.key) for problem in reading.problems] == [
        ("", "nodes"),
        ("sharing", "sharing.mode"),
        ("sharing", "sharing.partition.gpu.max_slowdown"),
        ("sharing", "sharing.partition.gpu.x"),
        ("node", "node.spool"),
        ("node", "node.mps_by_gpu"),
    ]


def test_a_strict_reader_gets_one_error_with_all_of_them() -> None:
    with pytest.raises(ConfigError) as caught:
        read_tables(WRONG, "a.toml", SECTIONS).strict(*SECTIONS)
    lines = str(caught.value).splitlines()
    assert len(lines) == 6
    assert all(line.startswith("a.toml: ") for line in lines)


def test_a_strict_reader_of_one_table_does_not_mind_another() -> None:
    tables = {"node": {"grace_s": "x"}, "sharing": {"shard_mib": 512}}
    reading = read_tables(tables, "a.toml", SECTIONS)
    assert reading.strict(SHARING).table(SHARING) == {"shard_mib": 512}
    with pytest.raises(ConfigError, match="grace_s"):
        reading.strict(NODE)


def test_a_lenient_reader_logs_what_is_done_instead() -> None:
    reading = read_tables({"node": {"grace_s": "x", "colour": 1}}, "a.toml", (NODE,))
    assert reading.notes == (
        "a.toml: node.grace_s must be a number of seconds, at most a day, not 'x' (the default is used)",
        f"a.toml: node: unknown key 'colour'; known: {', '.join(NODE.names)} (ignored)",
    )


def test_a_broken_file_is_one_problem_and_a_missing_one_none(tmp_path: Path) -> None:
    path = tmp_path / "gpumem.toml"
    assert read_file(str(path), SECTIONS).problems == ()
    path.write_text("[node\n")
    (problem,) = read_file(str(path), SECTIONS).problems
    assert (problem.table, problem.key) == ("", "")
    assert "is not valid TOML" in problem.text
    with pytest.raises(ConfigError, match="is not valid TOML"):
        read_file(str(path), SECTIONS).strict(NODE)


@given(
    st.dictionaries(
        st.sampled_from([section.name for section in SECTIONS]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from([name for section in SECTIONS for name in section.names])
                    | st.text(max_size=5),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=12,
        ),
    )
)
def test_no_table_makes_the_reader_fail(tables: Any) -> None:
    reading = read_tables(tables, "a.toml", SECTIONS)
    assert len(reading.notes) == len(reading.problems)


def test_a_variable_names_another_file_of_the_site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GPUMEM_SITE_CONFIG", "SLURM_CONF"):
        monkeypatch.delenv(name, raising=False)
    assert site_config_path() == "/etc/slurm/gpumem.toml"
    assert site_config_path({"GPUMEM_SITE_CONFIG": "/x/site.toml"}) == "/x/site.toml"
    conf = {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    assert site_config_path(conf) == "/etc/slurm/gpumem.toml"
    (tmp_path / "gpumem.toml").touch()
    assert site_config_path(conf) == str(tmp_path / "gpumem.toml")
    assert site_config_path({**conf, "GPUMEM_SITE_CONFIG": "/x/site.toml"}) == "/x/site.toml"
    assert beside_site_config("y.json", {"GPUMEM_SITE_CONFIG": "/x/site.toml"}) == "/x/y.json"
    monkeypatch.setenv("HOME", "/home/anna")
    assert user_config_path() == "/home/anna/.config/gpumem.toml"
