from __future__ import annotations

from pathlib import Path

import pytest

from tests.lua.played import INTERPRETERS, Player


@pytest.fixture
def play(tmp_path: Path) -> Player:
    """The oldest Lua, which Debian's Slurm is built with."""
    return Player("lua5.1", tmp_path)


@pytest.fixture(params=INTERPRETERS)
def play_each(request: pytest.FixtureRequest, tmp_path: Path) -> Player:
    """Every Lua that a Slurm may be built with."""
    return Player(request.param, tmp_path)
