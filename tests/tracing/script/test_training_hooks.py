"""Who is told what when a script trains, and in which order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, List, Tuple

from tests.support.needs import needs_torch

pytestmark = needs_torch


def _hooks(*, traced: bool = True, leads: bool = True, enough: bool = False) -> Tuple[Any, List[str]]:
    """Hooks, and what they tell others."""
    from slurm_gpumem.tracing.follow.training_hooks import TrainingHooks

    told: List[str] = []

    def tells(what: str, answer: Any = None) -> Any:
        return lambda *args, **kwargs: told.append(what) or answer

    recorder: Any = SimpleNamespace(enter=tells("forward"), end_cycle=tells("cycle", True), phase="forward")
    steps: Any = SimpleNamespace(
        counts={},
        number=1,
        makes_optimizers=False,
        begins=tells("begins"),
        ends=tells("ends", leads),
        taken_by_hand=tells("by hand"),
        cycle_over=tells("over"),
        look_for_growth=tells("growth"),
        is_enough=tells("enough?", enough),
    )
    skips: Any = SimpleNamespace(cycle_over=tells("skipped?", False), varies=False, whole=False)
    rounds: Any = SimpleNamespace(stepped=tells("round"))
    process: Any = SimpleNamespace(claim=tells("claim", traced), finish=tells("finish"))
    return TrainingHooks(recorder, steps, skips, rounds, process), told


def test_a_step_that_ends_a_cycle_is_a_round_once_it_is_clear_that_more_is_to_be_seen() -> None:
    hooks, told = _hooks()
    hooks._before_step(None, (), {})
    hooks._after_step(None, (), {})
    assert told == [
        *("claim", "begins", "ends", "cycle", "skipped?", "over", "growth", "forward", "enough?", "round")
    ]


def test_a_step_of_another_optimizer_ends_no_cycle() -> None:
    hooks, told = _hooks(leads=False, enough=True)
    hooks._after_step(None, (), {})
    assert told == ["ends", "forward", "enough?", "finish"]


def test_steps_beside_the_traced_process_are_not_followed() -> None:
    hooks, told = _hooks(traced=False)
    hooks._before_step(None, (), {})
    hooks._by_hand()
    assert told == ["claim", "claim"]


def test_gradients_of_weights_without_an_optimizer_are_a_step_and_let_no_answer_be_made_up() -> None:
    import torch

    hooks, told = _hooks()
    weight = torch.nn.Parameter(torch.ones(2))
    grad = hooks._noting(lambda outputs, inputs, *args, **kwargs: inputs)
    grad(None, iter([weight]), create_graph=True)
    assert hooks._skips.whole
    assert not told
    grad(None, weight)
    assert told[:2] == ["claim", "by hand"]
