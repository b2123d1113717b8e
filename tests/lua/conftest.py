from __future__ import annotations

from pathlib import Path

import pytest

from tests.lua.played import INTERPRETERS, Player


@pytest.fixture(params=INTERPRETERS)
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Player:
    return Player(request.param, tmp_path)
