from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from slurm_gpumem.formats.notes import FaultNote, read_fault_note, write_fault_note
from tests.formats.any_json import JSON


def test_a_fault_is_told_for_half_a_minute(tmp_path: Path) -> None:
    note = FaultNote(1000.0, (7, 8))
    write_fault_note(tmp_path / "fault.json", note)
    assert read_fault_note(tmp_path / "fault.json", 1029.0) == note
    assert read_fault_note(tmp_path / "fault.json", 1031.0) is None
    assert read_fault_note(tmp_path / "missing", 1000.0) is None


@pytest.mark.parametrize("lay", [os.mkfifo, os.mkdir])
def test_what_is_no_plain_file_says_nothing_and_is_not_waited_for(tmp_path: Path, lay: Any) -> None:
    lay(tmp_path / "note")
    assert read_fault_note(tmp_path / "note", 1.0) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(JSON)
def test_whatever_stands_in_a_note_it_can_be_read(tmp_path: Path, value: Any) -> None:
    (tmp_path / "note").write_text(json.dumps({"at": value, "jobs": value, "schema": "gpumem-fault/1"}))
    read_fault_note(tmp_path / "note", 1.0)
