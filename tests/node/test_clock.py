"""The clock is set, back or forward, while jobs run: durations, curves and notes stay what they were."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Callable

import pytest

from slurm_gpumem.formats.curve import parse_curve
from slurm_gpumem.formats.notes import FaultNote, read_fault_note, write_fault_note
from slurm_gpumem.node import hook
from slurm_gpumem.node.mps.mps_blocklist import Fault, FaultLog, Loss
from slurm_gpumem.node.records import find_record
from tests.node.conftest import Node
from tests.node.desk import GPUS, Desk

HOUR = 3600.0
DECADE = 10 * 365 * 24 * HOUR
SetClock = Callable[[float], None]


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """Sets the clock by seconds for everything in this process; the clocks that count from boot stay."""
    really = time.time

    def move(seconds: float) -> None:
        monkeypatch.setattr(time, "time", lambda: really() + seconds)

    return move


@pytest.mark.parametrize("jump", [-HOUR, HOUR, -DECADE, DECADE])
def test_a_record_is_as_long_as_the_job_whatever_the_clock_does(
    node: Node, monkeypatch: pytest.MonkeyPatch, set_clock: SetClock, jump: float
) -> None:
    node = node.with_config(mps="timeslice")
    monkeypatch.setattr(hook, "start_sampler", lambda folder, name: None)
    began, steady = time.time(), time.monotonic()
    hook.prolog(node.folder, node.config, node.env(7))
    set_clock(jump)
    hook.epilog(node.folder, node.config, node.env(7, SLURM_JOB_EXIT_CODE2="0:0"))
    hook.to_spool(node.folder, node.config, node.env(7))
    took = time.monotonic() - steady
    record = find_record(node.config.spool, 7, 0, "n1")
    assert record is not None
    assert record.end is not None
    assert record.start == pytest.approx(began, abs=took + 0.01)
    assert 0 <= record.end - record.start <= took + 0.01


@pytest.mark.parametrize("jump", [-HOUR, DECADE])
def test_a_curve_goes_on_where_it_was(desk: Desk, set_clock: SetClock, jump: float) -> None:
    desk.job(1)
    desk.hold({desk.process(1): 500.0})
    desk.live()
    set_clock(jump)
    desk.live()
    usage = desk.sampler.roster.usage[1].gpus[GPUS[0].uuid]
    curve = parse_curve(usage.curve.text() if usage.curve else "")
    assert curve is not None
    assert curve.step_s == 1.0
    assert len(curve.memory_mib) < 60
    assert usage.memory.weight < 60


def test_faults_from_before_the_clock_was_set_back_are_nobodys_an_hour_later() -> None:
    faults = FaultLog()
    faults.fault(Fault("GPU-a", 10 * HOUR, "xid", 31))
    faults.lost(Loss(1, 1000, 1000, "GPU-a", 10 * HOUR))
    assert len(faults.events(10 * HOUR)) == 1
    assert faults.events(9 * HOUR) == []
    faults.lost(Loss(2, 1000, 1000, "GPU-a", 10 * HOUR + 1))
    assert faults.events(10 * HOUR + 1) == []


def test_a_fault_note_of_the_future_is_not_of_just_now(tmp_path: Path) -> None:
    write_fault_note(tmp_path / "note", FaultNote(10 * HOUR, (1, 2)))
    assert read_fault_note(tmp_path / "note", 10 * HOUR + 1) == FaultNote(10 * HOUR, (1, 2))
    assert read_fault_note(tmp_path / "note", 9 * HOUR) is None
