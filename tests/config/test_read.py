"""One reader: everything that is wrong is found, and whoever reads decides whether that is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.config.paths import beside_site_config, site_config_path, user_config_path
from slurm_gpumem.config.read import read_file, read_tables
from slurm_gpumem.config.schema import NODE, OLD_KEYS, SECTIONS, SHARING
from slurm_gpumem.errors import ConfigError

NAMES = [name for section in SECTIONS for name in section.names]
WRONG = {
    "sharing": {"mode": "off", "shard_mib": 512, "partition": {"gpu": {"max_slowdown": 0, "x": 1}}},
    "node": {"headroom-mib": 7, "spool": "here", "mps_by_partition": {"old": "fast"}},
    "nodes": {},
}


def test_right_values_are_kept_and_every_wrong_one_is_named() -> None:
    reading = read_tables(WRONG, "a.toml", SECTIONS)
    assert reading.table(SHARING) == {"shard_mib": 512, "partition": {"gpu": {}}}
    assert reading.table(NODE) == {"headroom_mib": 7}
    assert [(problem.table, problem.key) for problem in reading.problems] == [
        ("", "nodes"),
        ("sharing", "sharing.mode"),
        ("sharing", "sharing.partition.gpu.max_slowdown"),
        ("sharing", "sharing.partition.gpu.x"),
        ("node", "node.spool"),
        ("node", "node.mps_by_partition"),
    ]


def test_who_cannot_go_on_gets_one_error_with_all_wrong_values() -> None:
    reading = read_tables(WRONG, "a.toml", SECTIONS)
    with pytest.raises(ConfigError) as caught:
        reading.usable(*SECTIONS)
    lines = [*str(caught.value).splitlines(), *reading.unknown(*SECTIONS)]
    assert len(lines) == 6
    assert all(line.startswith("a.toml: ") for line in lines)


def test_a_reader_of_one_table_does_not_mind_another() -> None:
    tables = {"node": {"headroom_mib": "x"}, "sharing": {"shard_mib": 512}}
    reading = read_tables(tables, "a.toml", SECTIONS)
    assert reading.usable(SHARING).table(SHARING) == {"shard_mib": 512}
    with pytest.raises(ConfigError, match="headroom_mib"):
        reading.usable(NODE)


def test_a_lenient_reader_logs_what_is_done_instead() -> None:
    reading = read_tables({"node": {"headroom_mib": "x", "colour": 1}}, "a.toml", (NODE,))
    assert reading.notes == (
        "a.toml: node.headroom_mib must be a whole number of MiB, not 'x' (the default is used)",
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
        read_file(str(path), SECTIONS).usable(NODE)


OLD = {
    "sharing": {"mode": "on", "max_cpus": 8, "partition": {"free": {"utilization": "ignore"}}},
    "slurm": {"timeout_s": "soon"},
    "job": {"batch-size": 8, "optimizer": "sgd"},
    "trace": {"at_once": 8, "at_once_per_user": 2},
    "node": {"grace_s": 2, "mps_by_gpu": {"T4": "timeslice"}, "slurm_env": {"SLURM_CONF": "/x"}},
    "accounting": {"index": "here"},
}


@pytest.mark.parametrize("sections", [SECTIONS, (SHARING,), (NODE,)])
def test_one_problem_names_every_key_that_was_a_setting_once_whoever_reads_the_file(sections: Any) -> None:
    (problem,) = read_tables(OLD, "a.toml", sections).problems
    assert problem.text == (
        "a.toml: no longer settings, and without effect: sharing.max_cpus, slurm.timeout_s, job.batch-size, "
        "trace.at_once_per_user, node.grace_s, node.mps_by_gpu, node.slurm_env, accounting.index, "
        "sharing.partition.free.utilization; remove those lines; "
        'utilization = "ignore" is now max_slowdown = 100; mps_by_partition takes the '
        "place of mps_by_gpu; a slurm.conf beside gpumem.toml takes the place of slurm_env; write what a job "
        "says of itself into its script (#GPUMEM)"
    )


def test_old_keys_are_a_reason_for_a_warning_and_never_for_an_error() -> None:
    reading = read_tables(OLD, "a.toml", SECTIONS)
    assert reading.usable(*SECTIONS).table(SHARING)["mode"] == "on"
    (warning,) = reading.unknown(SHARING)
    assert reading.notes == (f"{warning} (ignored)",)


def test_a_slip_in_a_key_is_named_beside_the_old_ones() -> None:
    reading = read_tables({"sharing": {"mods": "on", "cpus": "share"}}, "a.toml", SECTIONS)
    old, slip = (problem.text for problem in reading.problems)
    assert old == "a.toml: no longer a setting, and without effect: sharing.cpus; remove that line"
    assert slip == "a.toml: sharing: unknown key 'mods'; did you mean 'mode'?"


@given(
    st.dictionaries(
        st.sampled_from([section.name for section in SECTIONS] + list(OLD_KEYS)),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from([*NAMES, *(name for names in OLD_KEYS.values() for name in names)])
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
    assert sum(problem.old for problem in reading.problems) <= 1


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
