"""Asking Slurm without waiting, with programs that answer, fail, hang or are not there."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Callable, Optional

import pytest

from slurm_gpumem.slurm.client import Commands
from slurm_gpumem.slurm.state.background import Background, Reply

Programs = Callable[..., Background]


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    def make(**scripts: str) -> Background:
        for name, script in scripts.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)
        return Background(Commands({"OUT": str(tmp_path)}, tmp_path))

    return make


def answer(slurm: Background) -> Optional[Reply]:
    until = time.monotonic() + 60
    while slurm.is_asking and time.monotonic() < until:
        reply = slurm.answer()
        if reply is not None:
            return reply
        time.sleep(0.01)
    return None


def test_an_answer_is_given_once_when_it_has_come(programs: Programs) -> None:
    slurm = programs(squeue='echo "$@"')
    slurm.ask(["squeue", "-w", "n1"])
    assert slurm.is_asking
    assert answer(slurm) == Reply("-w n1\n", "", ok=True)
    assert (slurm.is_asking, slurm.answer()) == (False, None)


def test_a_command_that_fails_says_so_in_its_own_words(programs: Programs) -> None:
    slurm = programs(squeue="echo 5; echo slow >&2; exit 1")
    slurm.ask(["squeue"])
    assert answer(slurm) == Reply("5\n", "slow\n", ok=False)


def test_a_command_that_is_missing_has_no_answer(programs: Programs) -> None:
    slurm = programs()
    slurm.ask(["no-such-squeue"])
    assert answer(slurm) is None
    assert not slurm.is_asking


def test_a_question_that_hangs_is_given_up(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_gpumem.slurm.state.background._TIMEOUT_S", 0.05)
    slurm = programs(squeue="exec sleep 600")
    slurm.ask(["squeue"])
    assert answer(slurm) is None
    assert not slurm.is_asking


def test_orders_are_carried_out_before_the_end(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_gpumem.slurm.state.background._CLOSE_S", 60.0)
    slurm = programs(scancel='echo "cancel $@" >>"$OUT/log"', scontrol='echo "$@" >>"$OUT/log"')
    slurm.warn(7, "too much memory")
    slurm.cancel("7")
    slurm.close()
    assert sorted((tmp_path / "log").read_text().splitlines()) == ["cancel 7", "notify 7 too much memory"]
