"""Loops that only values on the GPU end: a trace ends them after some rounds and says so."""

from __future__ import annotations

import itertools
from typing import Any, Callable, List, Set, Tuple

import pytest

from tests.support.needs import needs_torch

pytestmark = needs_torch


def _halve(x: Any) -> Any:
    while (x.abs() > 100).any():
        x = x * 0.5
    return x


def _settle(x: Any) -> Any:
    while not (x.abs() < 1).all():
        x = x * 0.5
    return x


def _iterate(x: Any) -> Any:
    while x.norm().item() > 1e-3:
        x = x * 0.5
    return x


def _count(x: Any) -> Any:
    while int(x.sum().long()) < 20:
        x = x + 1
    return x


def _until_small(x: Any) -> Any:
    while True:
        before, x = x, x * 0.5
        if (x - before).norm().item() < 1e-4:
            break
    return x


def _until_alike(x: Any) -> Any:
    settled, last = False, float("inf")
    while not settled:
        x = x * 0.5
        now = x.norm().item()
        settled = abs(last - now) < 1e-9
        last = now
    return x


def _returned(x: Any) -> Any:
    for _ in itertools.count():
        x = x * 0.5
        if x.abs().max() < 1e-3:
            return x


def _adaptive(x: Any) -> Any:
    """A step is accepted if its error is small, else it is made smaller: values decide when it is there."""
    time, step = 0.0, 0.1
    while time < 1.0:
        error = (x * step).abs().max()
        if error < 1e-3:
            time += step
            step *= 1.5
        else:
            step *= 0.5
    return x


def _limited(x: Any) -> Any:
    """It ends by itself, as it did before."""
    rounds = 0
    while x.norm() > 1e-3:
        x = x * 0.5
        rounds += 1
        if rounds == 50:
            break
    assert rounds == 50
    return x


def _nested(x: Any) -> Any:
    for limit in (8.0, 4.0, 2.0, 1.0):
        while (x.abs() > limit).any():
            x = x * 0.5
    return x


def _actions(x: Any) -> Any:
    """Whole numbers that a loop's body reads are not its condition."""
    done, rounds = False, 0
    while not done:
        action = int(x.argmax())
        assert 0 <= action < x.numel()
        rounds += 1
        done = action + rounds >= 300
    return x


class _Recorder:
    def __init__(self) -> None:
        self.live_bytes = 0
        self.flat_loops: Set[Tuple[str, bool]] = set()

    def warn_once(self, key: str, text: str) -> None:
        pass


def _warnings(loop: Callable[[Any], Any], layers: int = 1) -> List[str]:
    import torch
    from torch import nn

    from slurm_gpumem.tracing.model.live import summarize

    class Looping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = loop(layer(x))
            return x

    warnings = summarize(Looping(), torch.empty(4, 8, device="meta")).warnings
    return [text for text in warnings if "how often the loop" in text]


@pytest.mark.parametrize("loop", [_halve, _settle, _iterate, _count])
def test_a_loop_that_values_end_is_ended_and_draws_a_warning(loop: Callable[[Any], Any]) -> None:
    said = _warnings(loop)
    if loop is _settle:
        assert said == [], "the usual guess ends it"
        return
    line = loop.__code__.co_firstlineno + 1
    assert len(said) == 1
    assert f"the loop at test_open_loops.py, line {line}," in said[0]
    assert "ended after 20 rounds" in said[0]


@pytest.mark.parametrize("loop", [_until_small, _until_alike, _returned, _adaptive])
def test_a_loop_that_values_end_in_its_body_is_ended_with_one_warning(loop: Callable[[Any], Any]) -> None:
    said = _warnings(loop, layers=3)
    assert len(said) == 1
    assert "ended after 20 rounds" in said[0]


def test_a_loop_with_a_largest_number_of_rounds_runs_them() -> None:
    assert _warnings(_limited) == []


def test_a_loop_in_a_loop_is_ended_each_time() -> None:
    assert len(_warnings(_nested)) == 1


def test_whole_numbers_that_a_loop_reads_on_the_way_stay_valid() -> None:
    assert _warnings(_actions) == []


def test_each_call_of_a_function_has_rounds_of_its_own() -> None:
    """Calls that follow each other have frames at the same address."""
    assert _warnings(_settle, layers=30) == []


def test_a_loop_that_one_call_meets_again_and_again_is_ended_each_time() -> None:
    from slurm_gpumem.tracing.engine.value_dependent_code import loop_answer

    rounds = [0] * 100
    for step in range(100):
        while loop_answer(_Recorder(), True):
            rounds[step] += 1
    assert set(rounds) == {20}


@pytest.mark.parametrize(("grows", "expected"), [(0, [20, 4, 4]), (1, [20, 20, 20])])
def test_a_loop_is_ended_sooner_once_its_rounds_were_seen_to_keep_no_memory(
    grows: int, expected: List[int]
) -> None:
    from slurm_gpumem.tracing.engine.value_dependent_code import loop_answer

    recorder, found = _Recorder(), []
    for _ in expected:
        rounds = 0
        while loop_answer(recorder, True):
            rounds += 1
            recorder.live_bytes += grows
        found.append(rounds)
    assert found == expected


def test_a_loop_that_begins_to_keep_memory_is_no_longer_ended_sooner() -> None:
    from slurm_gpumem.tracing.engine.value_dependent_code import loop_answer

    recorder, found = _Recorder(), []
    for grows in (0, 0, 1):
        rounds = 0
        while loop_answer(recorder, True):
            rounds += 1
            recorder.live_bytes += grows
        found.append(rounds)
    assert found == [20, 4, 20]


def test_a_loop_that_no_answer_ends_is_refused_with_its_line() -> None:
    from slurm_gpumem.tracing.engine.value_dependent_code import EndlessLoop, loop_answer

    def wait() -> None:
        while loop_answer(_Recorder(), 1) != 7:
            pass

    with pytest.raises(EndlessLoop, match=r"the loop at test_open_loops\.py, line \d+,"):
        wait()
