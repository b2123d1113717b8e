"""Which batches a loader gives when training has nothing new to show."""

from __future__ import annotations

import builtins
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, Callable, Dict, List

import pytest

from tests.support.needs import needs_torch

pytestmark = needs_torch

LOOP = """
def train(loader, counted):
    for number, batch in enumerate(loader):
        counted.append(number)
"""
COUNTS = """
def train(loader, counted):
    step = 0
    for batch in loader:
        step += 1
        counted.append(step)
        if step % 40 == 0:
            evaluate = True
"""
ASKS = """
def train(loader, counted):
    batches = iter(loader)
    for number in range(12):
        next(batches)
        counted.append(number)
"""


@pytest.fixture
def epochs(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Callable[..., List[int]]:
    """Run a script's function on a loader of a hundred batches, and say what it has counted."""
    from torch.utils.data import DataLoader, dataloader

    from slurm_gpumem.tracing.follow import loop_skipper
    from slurm_gpumem.tracing.follow.epochs import Epochs

    kind = dataloader._BaseDataLoaderIter
    monkeypatch.setattr(kind, "__next__", kind.__next__)

    def run(code: str, *, repeats: bool) -> List[int]:
        steps: Any = SimpleNamespace(taken=0, fast_forward=repeats, time_left=lambda: 0.0)
        recorder: Any = SimpleNamespace(loads=nullcontext)
        unwritten: Any = SimpleNamespace(count=0, left_out=lambda since: None)
        notes: List[str] = []
        rounds = loop_skipper.Rounds(recorder, steps, unwritten, notes.append)
        Epochs(recorder, steps, rounds, unwritten, lambda: repeats, notes.append).install()
        script = tmp_path / "train.py"
        script.write_text(code)
        names: Dict[str, Any] = {"enumerate": rounds.enumerate, "range": builtins.range}
        exec(compile(code, str(script), "exec"), names)
        counted: List[int] = []
        names["train"](DataLoader(list(range(100))), counted)
        assert not notes
        return counted

    return run


def test_every_batch_is_given_as_long_as_training_has_something_new(epochs: Callable[..., Any]) -> None:
    assert epochs(LOOP, repeats=False) == list(range(100))


def test_after_a_few_batches_comes_the_last_with_its_true_number(epochs: Callable[..., Any]) -> None:
    assert epochs(LOOP, repeats=True) == [0, 1, 2, 99]


def test_what_a_loop_counts_by_hand_is_set_and_batches_that_may_differ_are_given(
    epochs: Callable[..., Any],
) -> None:
    assert epochs(COUNTS, repeats=True) == [1, 2, 3, 40, 41, 80, 81, 100]


def test_a_script_that_asks_one_by_one_gets_all_that_it_asks_for(epochs: Callable[..., Any]) -> None:
    assert epochs(ASKS, repeats=True) == list(range(12))
