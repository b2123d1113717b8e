"""Where training stands: autograd's engine (`backward`, and `grad`, which also runs inside of other passes)
and steps of optimizers."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator, List

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


@contextmanager
def training_phases(
    enter: Callable[[str], None],
    phase: Callable[[], str],
    before_step: Callable[[Any], None],
    after_step: Callable[[Any], None],
) -> Iterator[List[str]]:
    """Inside, backward passes and optimizers' steps are phases; what was there before goes on after them.

    Yields the phases that have happened so far.
    """
    happened: List[str] = []
    outer: List[str] = []

    def backward(*args: Any, **kwargs: Any) -> Any:
        happened.append("backward")
        return in_backward(*args, **kwargs)

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        # Gradients exist by now; marked before the optimizer's own tensors appear.
        before_step(optimizer)
        outer.append(phase())
        enter("optimizer")
        happened.append("optimizer")

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        after_step(optimizer)
        # What comes next is not the optimizer's: rollouts, another model's turn.
        enter(outer.pop() if outer else "forward")

    real_backward, real_grad = torch.autograd.backward, torch.autograd.grad
    in_backward = entering(real_backward, enter, phase)
    handles = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    torch.autograd.backward = backward
    torch.autograd.grad = entering(real_grad, enter, phase)
    try:
        yield happened
    finally:
        torch.autograd.backward, torch.autograd.grad = real_backward, real_grad
        for handle in handles:
            handle.remove()


def entering(real: Any, enter: Callable[[str], None], phase: Callable[[], str]) -> Any:
    """The function, in the phase "backward"."""

    def engine(*args: Any, **kwargs: Any) -> Any:
        before = phase()
        if before == "backward":
            return real(*args, **kwargs)
        enter("backward")
        try:
            return real(*args, **kwargs)
        finally:
            enter(before)

    return engine
