from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from slurm_gpumem.formats.notes import (
    FaultNote,
    UsageNote,
    read_fault_note,
    read_usage_note,
    write_fault_note,
    write_usage_note,
)
from tests.formats.any_json import JSON

NOTE = UsageNote(7, 1024, 13, 13_312, 12_186, 11_878.4, 151_200.0, 0.34, 1.4, (8, 9), 60, "", 13_000)


def test_a_fault_is_told_for_half_a_minute(tmp_path: Path) -> None:
    note = FaultNote(1000.0, (7, 8))
    write_fault_note(tmp_path / "fault.json", note)
    assert read_fault_note(tmp_path / "fault.json", 1029.0) == note
    assert read_fault_note(tmp_path / "fault.json", 1031.0) is None
    assert read_fault_note(tmp_path / "missing", 1000.0) is None


def test_a_usage_note_is_read_back(tmp_path: Path) -> None:
    write_usage_note(tmp_path / "7.usage", NOTE, os.geteuid())
    assert read_usage_note(tmp_path / "7.usage", 7) == NOTE
    assert read_usage_note(tmp_path / "missing", 7) == UsageNote(7)


@pytest.mark.parametrize("lay", [os.mkfifo, os.mkdir])
def test_what_is_no_plain_file_says_nothing_and_is_not_waited_for(tmp_path: Path, lay: Any) -> None:
    lay(tmp_path / "note")
    assert read_fault_note(tmp_path / "note", 1.0) is None
    assert read_usage_note(tmp_path / "note", 7) == UsageNote(7)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(JSON)
def test_whatever_stands_in_a_note_it_can_be_read(tmp_path: Path, value: Any) -> None:
    for schema in ("gpumem-fault/1", "gpumem-usage/1"):
        table = dict.fromkeys((*UsageNote._fields, "at", "jobs"), value)
        (tmp_path / "note").write_text(json.dumps({**table, "schema": schema}))
        read_fault_note(tmp_path / "note", 1.0)
        assert read_usage_note(tmp_path / "note", 7).job_id == 7
