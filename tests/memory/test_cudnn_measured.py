"""Convolutions whose workspace was measured, where the trees are wrong about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurm_gpumem.errors import ConfigError
from slurm_gpumem.memory import cudnn_measured
from slurm_gpumem.memory.columns import read_columns, to_bytes
from slurm_gpumem.memory.cudnn_measured import Measured, from_columns, make, to_file
from slurm_gpumem.memory.cudnn_workspace import workspace_bytes
from tests.memory.test_cudnn_workspace import convolution

MIB = 1 << 20
PLAIN = convolution(channels=48, outputs=96, call="weight")


def known() -> Measured:
    calls = [(PLAIN, rows) for rows in (8, 16, 32, 64)]
    return make(calls, [(PLAIN, 16, 10 * MIB), (PLAIN, 32, 30 * MIB), (PLAIN, 100, 7 * MIB)])


def test_what_was_measured_is_answered() -> None:
    assert known().other_bytes(PLAIN, 16) == 10 * MIB
    assert known().other_bytes(PLAIN, 100) == 7 * MIB
    assert known().other_bytes(PLAIN, 8) is None
    assert known().other_bytes(replace(PLAIN, call="forward"), 16) is None


def test_between_two_that_the_trees_are_wrong_about_the_answer_lies_between() -> None:
    assert known().other_bytes(PLAIN, 24) == 20 * MIB
    assert known().other_bytes(PLAIN, 48) is None


def test_both_types_of_16_bits_are_one() -> None:
    half = make([], [(replace(PLAIN, dtype="bf16"), 16, MIB)])
    assert half.other_bytes(replace(PLAIN, dtype="fp16"), 16) == MIB
    assert half.other_bytes(PLAIN, 16) is None


def test_only_batch_sizes_that_were_measured_are_covered() -> None:
    assert known().covers(PLAIN, 8)
    assert known().covers(PLAIN, 64)
    assert not known().covers(PLAIN, 128)
    assert not known().covers(PLAIN, 24)
    assert not known().covers(replace(PLAIN, stride=(2, 2)), 8)
    assert not known().covers(PLAIN, 0)


def test_a_file_says_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / cudnn_measured.FILE
    path.write_bytes(to_file(known()))
    again = from_columns(*read_columns(path))
    for name in ("known", "least", "most", "wrong", "units"):
        assert list(getattr(again, name)) == list(getattr(known(), name))


@pytest.mark.parametrize("damage", ["format", "short", "other columns", "missing"])
def test_a_damaged_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    path = tmp_path / cudnn_measured.FILE
    whole = to_file(known())
    if damage == "format":
        path.write_bytes(whole.replace(b"measured/1", b"measured/9"))
    elif damage == "short":
        path.write_bytes(whole[:-3])
    elif damage == "other columns":
        path.write_bytes(to_bytes({"format": cudnn_measured.FORMAT}, [("I", [1])] * 4 + [("I", [])]))
    monkeypatch.setattr(cudnn_measured, "data_path", lambda *_: path)
    cudnn_measured.packaged.cache_clear()
    try:
        with pytest.raises(ConfigError, match="cudnn-measured"):
            cudnn_measured.packaged()
    finally:
        cudnn_measured.packaged.cache_clear()


def test_the_packages_own_file_is_used_for_workspaces() -> None:
    """Some call that the trees are wrong about is answered as it was measured."""
    measured = cudnn_measured.packaged()
    assert len(measured.wrong) > 1000
    asked = [
        convolution(call=call, channels=channels, outputs=channels, size=(side, side), out_size=(side, side))
        for call in ("forward", "input", "weight")
        for channels in (64, 128, 256, 512)
        for side in (7, 14, 28, 56)
    ]
    found = [(one, rows) for one in asked for rows in (32, 64, 128) if measured.covers(one, rows)]
    assert found
    for one, rows in found:
        answers = {workspace_bytes(one, rows, answer) for answer in ("least", "middle", "most")}
        assert len(answers) == 1
        assert measured.other_bytes(one, rows) in (None, *answers)
