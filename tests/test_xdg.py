"""A user's own files are where the XDG specification says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import slurm_gpumem
from slurm_gpumem.config.paths import user_config_path
from slurm_gpumem.xdg import cache_path, config_path, state_path

PACKAGE = Path(slurm_gpumem.__file__).parent


def test_without_variables_they_are_below_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/h")
    assert (config_path("a"), cache_path("a", "b"), state_path("a")) == (
        "/h/.config/a",
        "/h/.cache/gpumem/a/b",
        "/h/.local/state/a",
    )


def test_the_variables_count_unless_they_are_relative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/c")
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert user_config_path() == "/c/gpumem.toml"
    assert cache_path() == "/h/.cache/gpumem"


def test_nobody_else_reads_the_variables() -> None:
    reading = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(r"environ.*XDG_(CONFIG|CACHE|STATE)_HOME", path.read_text())
    ]
    assert reading == []
