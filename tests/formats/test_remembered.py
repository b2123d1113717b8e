"""The remembered file: traps, links and other users' files in its place remember nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_gpumem.formats.remembered import SCHEMA, Recipe, read_remembered, write_remembered

RECIPE = Recipe("0123456789abcdef", "128", "adam", "fp32", "")
RUNS = {RECIPE: {"a100": [12000, 11990]}}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "gpumem" / "remembered.json"
    write_remembered(path, RUNS)
    assert read_remembered(path, RECIPE) == {"a100": (12000, 11990)}
    assert read_remembered(path, RECIPE._replace(batch="64")) == {}
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_fifo_in_its_place_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "remembered.json")
    assert read_remembered(tmp_path / "remembered.json", RECIPE) == {}


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    write_remembered(tmp_path / "real.json", RUNS)
    (tmp_path / "remembered.json").symlink_to("real.json")
    assert read_remembered(tmp_path / "remembered.json", RECIPE) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_another_users_file_is_not_believed(tmp_path: Path) -> None:
    write_remembered(tmp_path / "remembered.json", RUNS)
    os.chown(tmp_path / "remembered.json", 54321, 54321)
    assert read_remembered(tmp_path / "remembered.json", RECIPE) == {}


BROKEN = (
    "",
    "[]",
    "{",
    '{"schema": "x/1", "runs": {}}',
    f'{{"schema": "{SCHEMA}", "runs": []}}',
    f'{{"schema": "{SCHEMA}", "runs": {{"{" ".join(RECIPE)}": [9000]}}}}',
    "[" * 9999,
)


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_file_remembers_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "remembered.json").write_text(text)
    assert read_remembered(tmp_path / "remembered.json", RECIPE) == {}
