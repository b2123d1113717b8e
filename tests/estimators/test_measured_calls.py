"""Convolutions whose workspace was measured, where the trees are wrong about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab.fit.workspace_files import make_measured, measured_bytes, to_bytes
from slurm_gpumem.errors import ConfigError
from slurm_gpumem.estimators.workspaces import measured_calls
from slurm_gpumem.estimators.workspaces.columns import read_columns
from slurm_gpumem.estimators.workspaces.convolutions import workspace_bytes
from slurm_gpumem.estimators.workspaces.measured_calls import Measured, from_columns
from slurm_gpumem.summaries.trace_types import CALLS
from slurm_gpumem.units import MIB
from tests.estimators.test_workspaces import convolution

PLAIN = convolution(channels=48, outputs=96, call="weight")


def known() -> Measured:
    calls = [(replace(PLAIN, call=call), rows) for call in CALLS for rows in (8, 16, 32, 64, 256)]
    # Only one of its calls could be told apart at this size.
    calls.append((PLAIN, 128))
    return make_measured(calls, [(PLAIN, 16, 10 * MIB), (PLAIN, 48, 30 * MIB), (PLAIN, 100, 7 * MIB)])


def test_what_was_measured_is_answered() -> None:
    assert known().bytes_at(PLAIN, 16) == 10 * MIB
    assert known().bytes_at(PLAIN, 100) == 7 * MIB
    assert known().bytes_at(PLAIN, 8) is None
    assert known().bytes_at(replace(PLAIN, call="forward"), 16) is None


def test_types_of_16_bits_are_two() -> None:
    half = make_measured([], [(replace(PLAIN, dtype="bf16"), 16, MIB)])
    assert half.bytes_at(replace(PLAIN, dtype="bf16"), 16) == MIB
    assert half.bytes_at(replace(PLAIN, dtype="fp16"), 16) is None


def test_only_batch_sizes_at_which_all_calls_were_measured_are_covered() -> None:
    covered = [rows for rows in range(1025) if known().covers(PLAIN, rows)]
    assert covered == [8, 16, 32, 64, 256]
    assert not known().covers(replace(PLAIN, stride=(2, 2)), 8)


def test_neighbours_are_the_powers_of_two_and_what_was_measured_halfway() -> None:
    assert known().neighbours(PLAIN, 24) == (16, 32)
    assert known().neighbours(PLAIN, 33) == (32, 48)
    assert known().neighbours(PLAIN, 63) == (48, 64)
    assert known().neighbours(replace(PLAIN, call="forward"), 63) == (32, 64)
    assert known().neighbours(PLAIN, 32) is None
    assert known().neighbours(PLAIN, 65) is None
    assert known().neighbours(PLAIN, 7) is None


def test_a_file_says_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / measured_calls.FILE
    path.write_bytes(measured_bytes(known()))
    again = from_columns(*read_columns(path))
    for name in ("known", "powers", "calls", "units"):
        assert list(getattr(again, name)) == list(getattr(known(), name))


@pytest.mark.parametrize("damage", ["format", "short", "other columns", "missing"])
def test_a_damaged_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    path = tmp_path / measured_calls.FILE
    whole = measured_bytes(known())
    if damage == "format":
        path.write_bytes(whole.replace(b"measured/3", b"measured/9"))
    elif damage == "short":
        path.write_bytes(whole[:-3])
    elif damage == "other columns":
        path.write_bytes(
            to_bytes({"format": measured_calls.FORMAT}, [("Q", [1]), ("H", [1]), ("Q", [1]), ("I", [])])
        )
    monkeypatch.setattr(measured_calls, "data_path", lambda *_: path)
    measured_calls.packaged.cache_clear()
    try:
        with pytest.raises(ConfigError, match="cudnn-measured"):
            measured_calls.packaged()
    finally:
        measured_calls.packaged.cache_clear()


def test_the_packages_own_file_is_used_for_workspaces() -> None:
    """Some call that the trees are wrong about is answered as it was measured."""
    measured = measured_calls.packaged()
    assert len(measured.calls) > 1000
    asked = [
        convolution(call=call, channels=channels, outputs=channels, size=(side, side), out_size=(side, side))
        for call in CALLS
        for channels in (64, 128, 256, 512)
        for side in (7, 14, 28, 56)
    ]
    found = [(one, rows) for one in asked for rows in (32, 64, 128) if measured.covers(one, rows)]
    assert found
    for one, rows in found:
        answers = {workspace_bytes(one, rows, answer) for answer in ("least", "middle", "most")}
        assert len(answers) == 1
        assert measured.bytes_at(one, rows) in (None, *answers)
