"""A script that only calls its models: when that is what it does, and what was seen of it.

Inference has no step that says "this is it". A process that ends by itself, or reaches the time limit in the
middle of forward passes, without ever having trained, is one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Dict, Optional

if TYPE_CHECKING:
    from torch import nn

    from slurm_gpumem.tracing.follow.enough_steps import Steps
    from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder

# How often a script has called its models: what messages call forward passes. Transforms of images and
# losses are modules too. A module without weights counts only while nothing that has weights was called,
# and only with tensors on the GPU: a model may hide its weights in a list.


class Passes:
    """Counts calls of modules by the script itself."""

    def __init__(self) -> None:
        self._models = 0
        self._others = 0

    @property
    def count(self) -> int:
        """Of models, where there are any."""
        return self._models or self._others

    def add(self, module: Any, given: Any) -> bool:
        """One more call; whether it counts."""
        if next(iter(module.parameters()), None) is not None:
            self._models += 1
            return True
        if self._models or not _on_gpu(given):
            return False
        self._others += 1
        return True


def _on_gpu(given: Any) -> bool:
    import torch  # here only: messages of traces are made where there is no torch
    from torch.utils import _pytree as pytree

    with torch._C.DisableTorchFunction():
        tensors = (one for one in pytree.tree_leaves(given) if isinstance(one, torch.Tensor))
        return any(one.device.type == "meta" for one in tensors)


INFERENCE, TRAINING = "inference", "training"
_MOST_EVENTS = 200_000
"""Noted in full; from there on, passes that set no new peak are dropped."""
_STILL_AT_WORK_S = 10.0
"""A model was called within this time before the limit: the script is in its loop."""
_LEAST_PASSES = 2
"""Calls before the limit cuts a loop off; one may be a look at the model before training."""
_CALM_PASSES = 8
"""Calls alike after which loaders end their epoch, so that the script comes to its end."""


class Inference:
    """Follows calls of models while nothing was trained."""

    def __init__(self, recorder: ScriptRecorder, steps: Steps, deadline: float, calm_s: float) -> None:
        self._recorder = recorder
        self._steps = steps
        self._deadline = deadline
        self._calm_s = calm_s
        self._passes = Passes()
        self.new_tokens = 0
        """The most tokens that one call of `generate` was asked for."""
        self.cut_off = False
        self._called_at = 0.0
        self._peak = 0
        self._grew_at = (0, 0.0)
        """Pass and time of the last new peak."""
        self._repeated = 0
        """Calls in a row whose shapes were known."""

    @property
    def passes(self) -> int:
        """Calls of models, run or not."""
        return self._passes.count

    def called(self, module: nn.Module, args: Any) -> None:
        """A module is about to be called by the script itself."""
        if self._steps.counts:
            return
        recorder = self._recorder
        recorder.end_pass(forget=len(recorder.events) > _MOST_EVENTS)
        if self._passes.add(module, args):
            self._count()
            self._repeated = 0

    def skipped(self, module: nn.Module, args: Any) -> None:
        """A call whose effect is known was not run."""
        if not self._steps.counts and self._passes.add(module, args):
            self._count()
            self._repeated += 1

    def asked_for(self, tokens: int) -> None:
        """A call of `generate` may add this number of tokens."""
        self.new_tokens = max(self.new_tokens, tokens)

    def _count(self) -> None:
        now = time.monotonic()
        self._called_at = now
        if self._recorder.peak_bytes > self._peak:
            self._peak = self._recorder.peak_bytes
            self._grew_at = (self.passes, now)

    @property
    def fast_forward(self) -> bool:
        """Whether forward passes have had nothing new to show for a while."""
        return (
            self._repeated >= _CALM_PASSES
            and not self._steps.counts
            and not self._steps.made
            and time.monotonic() - self._grew_at[1] > self._calm_s
        )

    def is_over(self) -> bool:
        """Whether the time limit has cut off a loop of forward passes."""
        now = time.monotonic()
        if now <= self._deadline or self._steps.counts:
            return False
        self.cut_off = self.at_work and self.passes >= _LEAST_PASSES and not self._may_train()
        return self.cut_off

    @property
    def at_work(self) -> bool:
        """Whether a model was called just now."""
        return self.passes > 0 and time.monotonic() - self._called_at < _STILL_AT_WORK_S

    def was_all(self) -> bool:
        """Whether a process that ends now has done inference on the GPU, and nothing else."""
        on_gpu = any(block.category != "workspace" for block in self._recorder.blocks)
        return bool(self.passes and on_gpu and not self._steps.counts)

    def _may_train(self) -> bool:
        return bool(self._steps.made or self._steps.backwards)

    def facts(self) -> Dict[str, Any]:
        """What to say of it."""
        peak = self._recorder.peak_bytes
        grew = self._grew_at[0] if peak == self._peak else self.passes
        return {
            "kind": INFERENCE,
            "passes": self.passes,
            "cut_off": self.cut_off,
            "growing": self.cut_off and grew > self.passes - max(2, self.passes // 10),
            "new_tokens": self.new_tokens,
            "unused": self._unused_optimizer(),
        }

    def _unused_optimizer(self) -> Optional[str]:
        return next((type(one).__name__ for one in self._steps.made), None)
