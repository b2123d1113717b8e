"""Hooks in autograd and in every optimizer: who is told what happens there, and in which order."""

from __future__ import annotations

import functools
from typing import Any, Callable, List, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from slurm_gpumem.tracing.follow.enough_steps import Steps, flat, spent
from slurm_gpumem.tracing.follow.fast_forward import FastForward
from slurm_gpumem.tracing.follow.loop_skipper import Rounds
from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder

# When autograd's engine is at work: `backward`, and `grad`, which also runs inside of other passes.


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


class TracedProcess(Protocol):
    """The process that trains."""

    def claim(self) -> bool:
        """Asked at the first optimizer step; False: another process is the traced one."""

    def finish(self) -> None:
        """Enough was seen."""


class TrainingHooks:
    """Stands where a script trains."""

    def __init__(
        self,
        recorder: ScriptRecorder,
        steps: Steps,
        skips: FastForward,
        rounds: Rounds,
        process: TracedProcess,
    ) -> None:
        self._recorder = recorder
        self._steps = steps
        self._skips = skips
        self._rounds = rounds
        self._process = process

    def install(self) -> None:
        """Hook into autograd and all optimizers."""
        torch.autograd.backward = self._counting(torch.autograd.backward)
        torch.autograd.grad = self._noting(
            entering(torch.autograd.grad, self._steps.enter, lambda: self._recorder.phase)
        )
        begin: Any = torch.optim.Optimizer.__init__

        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            self._steps.made.add(optimizer)
            self._steps.makes_optimizers = True
            begin(optimizer, *args, **kwargs)
            self._skip_known_steps(type(optimizer))

        torch.optim.Optimizer.__init__ = init  # type: ignore[method-assign,assignment]
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)

    def _counting(self, real: Callable[..., Any]) -> Any:
        """`torch.autograd.backward`: a phase of its own; in a script without optimizers, a step."""

        def backward(*args: Any, **kwargs: Any) -> Any:
            before = self._recorder.phase
            self._steps.enter("backward")
            try:
                return real(*args, **kwargs)
            finally:
                self._steps.backwards += 1
                self._skips.after_backward()
                self._steps.enter("forward" if before == "backward" else before)
                if not self._steps.makes_optimizers:
                    self._by_hand()

        return backward

    def _noting(self, real: Callable[..., Any]) -> Any:
        """`torch.autograd.grad`: gradients of weights, with which a script may change them by hand."""

        def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            inputs = inputs if isinstance(inputs, torch.Tensor) else tuple(inputs)
            weights = _are_weights(flat([inputs]))
            if weights:
                self._skips.whole = True
            first = self._recorder.phase != "backward"
            found = real(outputs, inputs, *args, **kwargs)
            if weights and first and not self._steps.makes_optimizers and not kwargs.get("create_graph"):
                self._by_hand()
            return found

        return grad

    def _skip_known_steps(self, kind: Any) -> None:
        """Steps of this class of optimizers whose effect on memory is known are not run any more."""
        real = kind.step
        if hasattr(real, "gpumem_real"):
            return

        @functools.wraps(real)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            closure = any(value is not None for value in (*args, *kwargs.values()))
            if closure or not self._steps.is_known(optimizer):  # a closure is work of its own
                return real(optimizer, *args, **kwargs)
            self._recorder.kernels.stop(self._recorder.cycles + 1)
            self._after_step(optimizer, args, kwargs)
            return None

        step.gpumem_real = real  # type: ignore[attr-defined]
        kind.step = step

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._steps.counts or self._process.claim():
            self._steps.begins(optimizer)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        ends_cycle = self._steps.ends(optimizer)
        if ends_cycle:
            self._end_cycle()
            self._steps.look_for_growth()
        self._recorder.enter("forward", self._steps.number)
        self._end_if_enough()
        if ends_cycle:
            self._rounds.stepped()

    def _by_hand(self) -> None:
        if self._steps.counts or self._process.claim():
            self._steps.taken_by_hand()
            self._end_cycle()
            self._end_if_enough()

    def _end_cycle(self) -> None:
        now, dropped, skipped = spent(), self._recorder.end_cycle(), self._skips.cycle_over()
        self._steps.cycle_over(now, alike=dropped or skipped)

    def _end_if_enough(self) -> None:
        if self._steps.is_enough(varied=self._skips.varies):
            self._process.finish()


def _are_weights(inputs: List[Any]) -> bool:
    """Whether gradients of a model's weights are asked for: its own, or several that were computed from them
    (weights that are adapted to a task)."""
    computed = all(isinstance(one, torch.Tensor) and one.grad_fn is not None for one in inputs)
    return any(isinstance(one, torch.nn.Parameter) for one in inputs) or (computed and len(inputs) > 1)
