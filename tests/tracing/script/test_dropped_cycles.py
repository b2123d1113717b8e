"""Cycles of a training that are dropped because they repeat the one before them."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, Dict, List, Sequence, Tuple

import pytest

from tests.support.needs import needs_torch

pytestmark = needs_torch


def _recorder(count: int, shift: int) -> Any:
    """One that has seen two cycles: `count` blocks each, the second releases those of the first."""
    from slurm_gpumem.tracing.engine.recording import Block
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


def _tokens(kinds: Sequence[int]) -> Tuple[Any, List[Tuple[int, int]]]:
    """A recorder after some rounds, of as many blocks as they say; each releases those of the one before."""
    from slurm_gpumem.tracing.engine.recording import Block

    recorder = _recorder(0, 0)
    recorder.gpu_bytes, recorder.peak_bytes, recorder.most_bytes, recorder.pool = 1 << 50, 0, 0, 0
    held: List[int] = []
    marks = [(0, 0)]
    for count in kinds:
        before, held = held, []
        for _ in range(count):
            held.append(recorder._add(Block((), 1, 512, "aten::cat", "", "evaluate")))
        for number in before:
            recorder.drop(number)
        marks.append((len(recorder.events), len(recorder.blocks)))
    recorder._live.update((key, (number, None)) for key, number in enumerate(held))
    return recorder, marks


def _let_go(recorder: Any) -> None:
    """The script releases all that it holds; every block was released once."""
    for key in list(recorder._live):
        recorder._gone(key)
    released = [~event for event in recorder.events if event < 0]
    assert len(released) == len(set(released))


def test_a_round_is_repeated_only_after_one_like_itself() -> None:
    """What pads to a multiple of some length does less in one round of several."""
    for kinds in ([3, 2, 3, 3, 2], [2, 3, 2, 3], [3, 3, 2, 3, 3]):  # the first of a window is like the last
        recorder, marks = _tokens(kinds)
        assert not recorder.repeat_growing(marks[1:], 10, 1000)
    recorder, marks = _tokens([3, 3, 3, 3])
    assert recorder.repeat_growing(marks[1:], 10, 1000)
    assert len(recorder.blocks) == 14 * 3
    assert recorder.live_bytes == 3 * 512
    _let_go(recorder)
    assert recorder.live_bytes == 0


def test_rounds_that_do_not_fit_leave_blocks_that_are_released_once() -> None:
    import torch

    for room in range(6, 20):
        recorder, marks = _tokens([3, 3, 3, 3])
        for number in range(marks[-2][1], marks[-1][1]):  # the last is larger: they grow
            recorder.blocks[number].nbytes *= 2
            recorder.live_bytes += 512
        recorder.gpu_bytes = room * 512
        with pytest.raises(torch.cuda.OutOfMemoryError):
            recorder.repeat_growing(marks[1:], 100, 10_000)
        _let_go(recorder)
