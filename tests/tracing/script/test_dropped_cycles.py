"""Cycles of a training that are dropped because they repeat the one before them."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, Dict, Tuple

import pytest

from tests.support.needs import needs_torch

pytestmark = needs_torch


def _recorder(count: int, shift: int) -> Any:
    """One that has seen two cycles: `count` blocks each, the second releases those of the first."""
    from slurm_gpumem.tracing.recorder import Block
    from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder

    recorder = ScriptRecorder.__new__(ScriptRecorder)
    recorder.blocks = [
        Block((), 1, 512 * (number % 7 + 1), "aten::mm", "", "forward") for number in range(2 * count)
    ]
    recorder.events = [*range(2 * count), *(~number for number in range(count))]
    live: Dict[int, Tuple[int, Any]] = {at: (count + (at + shift) % count, None) for at in range(count)}
    recorder._live = live
    recorder.phases, recorder.emptied, recorder.step = [], [count, count + 1], 1
    recorder.grown_bytes = recorder.live_bytes = recorder.dropped = 0
    recorder.kernels = SimpleNamespace(by_step={})  # type: ignore[assignment]
    return recorder


@pytest.mark.parametrize("shift", [0, 3])
def test_what_a_dropped_cycle_left_takes_the_places_of_what_it_released(shift: int) -> None:
    count = 70
    recorder = _recorder(count, shift)
    recorder._forget(count, count)
    assert sorted(place for place, _ in recorder._live.values()) == list(range(count))
    assert recorder.events == list(range(count))
    assert recorder.grown_bytes == 0
    assert recorder.emptied == [count]


@pytest.mark.timing
def test_many_parameters_are_dropped_in_a_time_that_grows_with_their_number() -> None:
    started = time.process_time()
    recorder = _recorder(20_000, 1)
    recorder._forget(20_000, 20_000)
    # Each with each would take more than a minute.
    assert time.process_time() - started < 10
