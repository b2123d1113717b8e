"""Loops that only values on the GPU end: a trace ends them after some rounds and says so."""

from __future__ import annotations

from typing import Any, Callable, List

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


def _warnings(loop: Callable[[Any], Any], layers: int = 1) -> List[str]:
    import torch
    from torch import nn

    from slurm_gpumem.tracing.trace_model import summarize

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


def test_each_call_of_a_function_has_rounds_of_its_own() -> None:
    """Calls that follow each other have frames at the same address."""
    assert _warnings(_settle, layers=30) == []


def test_a_loop_that_one_call_meets_again_and_again_is_ended_each_time() -> None:
    from slurm_gpumem.tracing.guards import loop_answer

    class Recorder:
        def warn_once(self, key: str, text: str) -> None:
            pass

    rounds = [0] * 100
    for step in range(100):
        while loop_answer(Recorder(), True):
            rounds[step] += 1
    assert set(rounds) == {20}


def test_a_loop_that_no_answer_ends_is_refused_with_its_line() -> None:
    from slurm_gpumem.tracing.guards import EndlessLoop, loop_answer

    class Recorder:
        def warn_once(self, key: str, text: str) -> None:
            pass

    def wait() -> None:
        while loop_answer(Recorder(), 1) != 7:
            pass

    with pytest.raises(EndlessLoop, match=r"the loop at test_open_loops\.py, line \d+,"):
        wait()
