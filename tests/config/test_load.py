"""The configuration of a submission: files and variables, typed; what is wrong is an error."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slurm_gpumem.config.load import Config, load_config
from slurm_gpumem.errors import ConfigError
from tests.support.other_user import as_user, user_python


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".config").mkdir()
    return tmp_path


def load(home: Path, site: str = "", user: str = "", **env: str) -> Config:
    (home / "site.toml").write_text(site)
    (home / ".config" / "gpumem.toml").write_text(user)
    return load_config({"GPUMEM_SITE_CONFIG": str(home / "site.toml"), **env})


def test_without_any_file_the_defaults_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_config({"GPUMEM_SITE_CONFIG": str(tmp_path / "none.toml")}) == Config()


def test_the_users_file_wins_over_the_sites_and_a_variable_over_both(home: Path) -> None:
    site = '[sharing]\nmode = "observe"\nshard_mib = 512\n[job]\noptimizer = "sgd"\nprecision = "bf16"\n'
    user = '[sharing]\nmode = "on"\n[job]\noptimizer = "adamw"\n'
    config = load(home, site, user)
    assert (config.sharing.mode, config.sharing.shard_mib) == ("on", 512)
    assert (config.job["optimizer"].value, config.job["precision"].value) == ("adamw", "bf16")
    assert config.job["optimizer"].origin.endswith(".config/gpumem.toml: job.optimizer")
    assert load(home, site, user, GPUMEM_SHARING_MODE="opt-in").sharing.mode == "opt-in"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[sharing]\nmods = 1\n", "sharing: unknown key 'mods'; did you mean 'mode'?"),
        ("[sharig]\n", "unknown key 'sharig'; did you mean 'sharing'?"),
        ('[job]\noptimiser = "sgd"\n', "job: unknown key 'optimiser'; did you mean 'optimizer'?"),
        ('[job]\nmodel = "x"\n', "job: unknown key 'model'"),
        ("[sharing]\nspool = 5\n", "sharing: unknown key 'spool'; it belongs to [node]"),
        ("[sharing.partition.gpu]\nmax_slowdwn = 1.2\n", "did you mean 'max_slowdown'?"),
    ],
)
def test_an_unknown_key_stops_nobody_and_is_a_warning_with_the_nearest_name(
    home: Path, text: str, message: str
) -> None:
    (warning,) = load(home, text).warnings
    assert message in warning
    assert "site.toml" in warning


def test_everything_wrong_in_a_file_is_said_at_once(home: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(home, "[sharing]\nmods = 1\nshard_mib = 0\n[trace]\nmemory_mib = -1\n")
    assert len(str(caught.value).splitlines()) == 2


def test_what_only_nodes_read_does_not_keep_anybody_from_submitting(home: Path) -> None:
    assert (
        load(home, '[node]\nheadroom_mib = "x"\ncolour = 1\nmps = "timeslice"\n').sharing.node_mps
        == "timeslice"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[sharing]\nmode = "off"\n', "sharing.mode must be one of observe, opt-in, known, on, not 'off'"),
        ('[sharing]\ngres = "gpu"\n', "sharing.gres must be one of shard, mps, not 'gpu'"),
        ("[sharing]\nshard_mib = 0\n", "sharing.shard_mib must be a whole number of at least 1, not 0"),
        ('[sharing]\nshard_mib = "1G"\n', "sharing.shard_mib must be a whole number"),
        ("[sharing]\nshard_mib = true\n", "sharing.shard_mib must be a whole number"),
        ("sharing = 5\n", "sharing must be a table"),
        ("[job]\noptimizer = []\n", "job.optimizer must be a word or a number"),
        ("[sharing\n", "is not valid TOML"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_the_file(home: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(home, text)
    assert message in str(caught.value)
    assert "site.toml" in str(caught.value)


def test_a_wrong_variable_is_named(home: Path) -> None:
    with pytest.raises(ConfigError, match="GPUMEM_SHARING_MODE must be one of"):
        load(home, GPUMEM_SHARING_MODE="maybe")


def test_a_variable_that_looks_like_a_slip_is_a_warning_and_others_are_not(home: Path) -> None:
    (said,) = load(home, GPUMEM_BATCHSIZE="8", GPUMEM_DEVCLUSTER_STATE="/x").warnings
    assert said == "environment: GPUMEM_BATCHSIZE is not known; did you mean GPUMEM_BATCH_SIZE?"


@pytest.mark.parametrize(("written", "value"), [("true", "yes"), ("false", "no"), ("4", "4"), ('"x"', "x")])
def test_job_defaults_become_words(home: Path, written: str, value: str) -> None:
    config: Any = load(home, f"[job]\non-oom = {written}\n")
    assert config.job["on-oom"].value == value


def test_the_accepted_slowdown_is_the_sites_or_the_partitions_own(home: Path) -> None:
    text = (
        "[sharing]\nmax_slowdown = 1.15\n[sharing.partition.quick]\nmax_slowdown = 1.02\n"
        "[sharing.partition.free]\nmax_slowdown = 100\n"
    )
    policy = load(home, text).sharing
    assert policy.slowdown_in(["gpu"]) == 1.15
    assert policy.slowdown_in(["gpu", "quick"]) == 1.02
    assert policy.slowdown_in(["free"]) is None
    assert policy.slowdown_in(["free", "gpu"]) == 1.15


def test_without_a_setting_a_step_may_take_twice_as_long(home: Path) -> None:
    assert load(home).sharing.slowdown_in(["gpu"]) == 2


def test_a_variable_can_set_the_slowdown(home: Path) -> None:
    assert load(home, GPUMEM_SHARING_MAX_SLOWDOWN="1.3").sharing.max_slowdown == 1.3


def test_nodes_that_share_in_time_slices_are_known_as_such(home: Path) -> None:
    assert load(home, '[node]\nmps = "timeslice"\n').sharing.node_mps == "timeslice"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[sharing]\nmax_slowdown = 0.9\n", "sharing.max_slowdown must be a factor of at least 1"),
        ('[sharing]\nmax_slowdown = "fast"\n', "sharing.max_slowdown must be a factor of at least 1"),
        ("[sharing]\nmax_slowdown = true\n", "sharing.max_slowdown must be a factor of at least 1"),
        ("[sharing.partition]\ngpu = 5\n", "sharing.partition must be tables"),
        (
            "[sharing.partition.gpu]\nmax_slowdown = 0\n",
            "sharing.partition.gpu.max_slowdown must be a factor",
        ),
    ],
)
def test_a_wrong_slowdown_is_an_error(home: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(home, text)
    assert message in str(caught.value)


def test_old_keys_and_variables_are_a_warning_each_and_nothing_else_changes(home: Path) -> None:
    site = '[sharing]\ncpus = "share"\nshard_mib = 512\n[slurm]\ncache_s = 5\n[node]\ngrace_s = "x"\n'
    config = load(home, site, GPUMEM_TEXT_UNKNOWN="ask", GPUMEM_SHARING_CPUS="share")
    old, variables = config.warnings
    assert old.endswith(
        "site.toml: no longer settings, and without effect: sharing.cpus, slurm.cache_s, node.grace_s; "
        "remove those lines"
    )
    assert variables == (
        "environment: no longer settings, and without effect: GPUMEM_SHARING_CPUS, GPUMEM_TEXT_UNKNOWN"
    )
    assert config._replace(warnings=()) == load(home, "[sharing]\nshard_mib = 512\n")


def test_what_is_wrong_in_a_file_is_told_to_those_who_may_change_it(state_folder: Path) -> None:
    found = user_python()
    if found is None:
        pytest.skip("no Python that another user may start")
    (state_folder / "site.toml").write_text("[sharing]\ncpus = 1\nmax_slowdon = 2\n")
    (state_folder / "site.toml").chmod(0o444)
    code = "from slurm_gpumem.config.load import load_config; print(load_config().warnings)"
    env = {
        **os.environ,
        **found[1],
        "HOME": str(state_folder),
        "GPUMEM_SITE_CONFIG": str(state_folder / "site.toml"),
    }
    said = [
        subprocess.run(
            [found[0], "-c", code], env=env, text=True, capture_output=True, check=True, **user
        ).stdout
        for user in (as_user(), {})
    ]
    assert said[0] == "()\n"
    (state_folder / ".config").mkdir()
    (state_folder / "site.toml").rename(state_folder / ".config" / "gpumem.toml")  # one's own, though closed
    own = subprocess.run(
        [found[0], "-c", code], env=env, text=True, capture_output=True, check=True, **as_user()
    )
    assert "max_slowdown" in own.stdout
    assert os.geteuid() or "max_slowdown" in said[1]
