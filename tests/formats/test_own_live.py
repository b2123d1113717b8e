"""A user's live file: round trip, and what is no such file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given

from slurm_gpumem.formats.live import OwnJob, OwnLive, own_live_from, read_own_live, write_own_live
from tests.formats.any_json import JSON

JOB = OwnJob((0, 2), 12, 12288, 40960.0, 7000, 800.5, 900.0, 0.25, 2, 3000.0, 3, "1.15")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    live = OwnLive("n1", 1_700_000_000.5, {4711: JOB, 4712: OwnJob()})
    write_own_live(tmp_path / "x.json", live, os.geteuid())
    assert read_own_live(tmp_path / "x.json") == live


@given(JSON)
def test_no_json_breaks_the_reader(value: object) -> None:
    own_live_from(value)
    own_live_from({"schema": "gpumem-own/1", "jobs": value, "at": value})
    own_live_from({"schema": "gpumem-own/1", "jobs": {"1": value}})
    own_live_from({"schema": "gpumem-own/1", "jobs": {"1": dict.fromkeys(OwnJob._fields, value)}})


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives a file to another user")
def test_a_file_that_a_user_wrote_is_not_believed(tmp_path: Path) -> None:
    write_own_live(tmp_path / "x.json", OwnLive("n1", 1.0, {1: JOB}), os.geteuid())
    os.chown(tmp_path / "x.json", 1, 1)
    assert read_own_live(tmp_path / "x.json") is None
