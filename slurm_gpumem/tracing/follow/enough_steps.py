"""Where a script stands: its phases, optimizers and their steps, and when enough has been seen."""

from __future__ import annotations

import time
import weakref
from typing import Any, Callable, Dict, FrozenSet, List, NamedTuple, Optional, Set

import torch
from torch.nn.parameter import is_lazy

from slurm_gpumem.tracing.follow import evaluations
from slurm_gpumem.tracing.model.loop import mark, states_of
from slurm_gpumem.tracing.model.optimizers import name_of
from slurm_gpumem.tracing.script.script_places import Root
from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder

ENOUGH_STEPS = 3
CALM_CYCLES = 3
"""Cycles alike after which nothing new is expected of training itself."""
_LONG_CYCLE_S = 2.0
"""A cycle that takes longer, alike the one before it, is enough: there is no time for many of them."""
_NOT_ALIKE_S = 5.0
"""After which training that never repeats itself has shown enough: the rest is for what comes after it."""
_LATE_S = 4.0
"""A script that has called nothing of PyTorch for this long when its time is over is not waited for."""
_JUST_NOW_S = 2.0
_FIRST_CYCLES = 5
"""In which memory grows in every training."""


class _Ran(NamedTuple):
    """Of the steps of an optimizer that were run: for which parameters, and beside how many bytes at most."""

    parameters: FrozenSet[int]
    beside: int


class Steps:
    """What has been seen of a training, and whether that is enough."""

    def __init__(self, recorder: ScriptRecorder, deadline: float, onward_s: float) -> None:
        self._recorder = recorder
        self._deadline = deadline
        self._onward_s = onward_s
        self.counts: Dict[int, int] = {}
        """Steps of each optimizer, by its address; those of optimizers that are gone have negative keys."""
        self.taken = 0
        """Steps of all of them."""
        self._stepped: List[Any] = []
        """Weak references: a script that drops an optimizer frees its states."""
        self.kinds: List[str] = []
        self.first_name = ""
        """Of the first optimizer that stepped, as summaries call it."""
        self._leader: Callable[[], Any] = lambda: None
        """The optimizer whose steps end cycles: the first one, and if it is gone the next that steps."""
        self.made: weakref.WeakSet[Any] = weakref.WeakSet()
        """Optimizers that the script has made, while they are there."""
        self.makes_optimizers = False
        """Without any, it changes its weights by hand."""
        self._ran: Dict[int, _Ran] = {}
        self.phases_seen: Set[str] = set()
        self.backwards = 0
        self.accumulation = 1
        self.cut_off = False
        """Whether the time limit ended it ..."""
        self.still_growing = False
        """... and memory had reached a new peak just before."""
        self.growing = False
        """Whether most cycles needed more than all before them, the last one too."""
        self._highest = self._higher = self._rose_at = 0
        self.led: Optional[int] = None
        """The step that a script of ours is at, which says itself when all was seen (`model.training`)."""
        self.forward_only = False
        """Whether its steps are forward passes without training."""
        self._looked = (0.0, -1)
        """When the last new peak was seen, and how high it was."""
        self._called = (-1, 0.0)
        """Operators that were run, and when their number was last seen to change."""
        self._calm = 0
        self._cycle_ended = 0.0
        self._enough_since: Optional[float] = None
        self._varied_enough = False
        self.evaluating: Set[str] = set()
        """Names of functions that were at work when a model was called without training."""
        self.autocast: Optional[torch.dtype] = None
        self.checkpointing = False

    def is_known(self, optimizer: Any) -> bool:
        """Whether a step was run for the same parameters, with as much in memory."""
        known = self._ran.get(id(optimizer))
        if known is None or not self.fast_forward or self.counts.get(id(optimizer), 0) < ENOUGH_STEPS:
            return False
        return _with_gradients(optimizer) <= known.parameters and self._recorder.live_bytes <= known.beside

    @property
    def fast_forward(self) -> bool:
        """Whether training has nothing new to show: loaders may end their epoch."""
        return self._calm >= CALM_CYCLES or self._varied_enough

    def time_is_over(self) -> bool:
        """Asked now and then: whether the script's time is over, and something was seen."""
        now, peak = time.monotonic(), self._recorder.peak_bytes
        if peak > self._looked[1]:
            self._looked = (now, peak)
        if not self.counts or self.led is not None or not self._is_over(now):
            return False
        self.still_growing = self.cut_off and now - self._looked[0] < _JUST_NOW_S
        return True

    def is_late(self) -> bool:
        """Whether the script's time is over, but it has called nothing for a while that could stop it.

        Asked once a second, by another thread: while the script is at work it must not be looked at.
        """
        now, calls = time.monotonic(), self._recorder.calls
        if calls != self._called[0]:
            self._called = (calls, now)
        if now - self._called[1] < _LATE_S or not self.counts or self.led is not None:
            return False
        return self._is_over(now)

    def called(self, root: Root, args: Any) -> None:
        """A model is called by the script itself."""
        recorder, module = self._recorder, root.module
        if module is None:
            return
        training = torch.is_grad_enabled() and module.training
        if recorder.phase in ("setup", "forward", "evaluate", "optimizer"):
            self.enter("forward" if training or self.forward_only else "evaluate")
        if training:
            recorder.places.reset()
            if recorder.half() is not None:
                self.autocast = recorder.half()
        else:
            self.evaluating |= evaluations.running()
        mark(recorder, [p for p in module.parameters() if not is_lazy(p)], "weights")
        mark(recorder, [b for b in module.buffers() if not is_lazy(b)], "buffers")
        mark(recorder, [value for value in flat(args) if isinstance(value, torch.Tensor)], "inputs")

    def saw(self, phase: str) -> None:
        """Something besides training happened: a checkpoint was written."""
        self.phases_seen.add(phase)

    def enter(self, phase: str) -> None:
        """From here on the script is in this phase."""
        self.phases_seen.add(phase)
        recorder = self._recorder
        if recorder.phase != phase or recorder.step == 0:
            recorder.enter(phase, self.number)

    @property
    def number(self) -> int:
        """Of the step that it is at."""
        return self._recorder.cycles + 1 if self.led is None else self.led

    def begins(self, optimizer: Any) -> None:
        """An optimizer is about to step."""
        recorder = self._recorder
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        known = self._ran.get(id(optimizer), _Ran(frozenset(), 0))
        self._ran[id(optimizer)] = _Ran(
            known.parameters | _with_gradients(optimizer), max(known.beside, recorder.live_bytes)
        )
        mark(recorder, parameters, "weights")
        mark(recorder, [p.grad for p in parameters if p.grad is not None], "gradients")
        self.enter("optimizer")

    def ends(self, optimizer: Any) -> bool:
        """An optimizer has stepped; whether that ends a cycle of the training."""
        mark(self._recorder, states_of(optimizer), "optimizer")
        key = id(optimizer)
        if key not in self.counts:
            self._first_step_of(optimizer)
        self.counts[key] = self.counts.get(key, 0) + 1
        self.taken += 1
        if self._leader() is None:
            self._leader = weakref.ref(optimizer)
        if self._leader() is not optimizer:
            return False
        self.accumulation = max(1, self.backwards)
        self.backwards = 0
        return True

    def taken_by_hand(self) -> None:
        """A backward pass of a script without optimizers is a step."""
        self.counts[0] = self.counts.get(0, 0) + 1
        self.taken += 1
        self.backwards = 0

    def cycle_over(self, at: float, *, alike: bool) -> None:
        """A cycle was over then; `alike`: it had nothing new to show."""
        by = CALM_CYCLES if at - self._cycle_ended > _LONG_CYCLE_S else 1
        self._calm = self._calm + by if alike else 0
        self._cycle_ended = at

    @property
    def optimizers(self) -> List[Any]:
        """Those that have stepped, and are there."""
        return [one for one in (found() for found in self._stepped) if one is not None]

    def _first_step_of(self, optimizer: Any) -> None:
        self._stepped.append(weakref.ref(optimizer))
        self.kinds.append(type(optimizer).__name__)
        self.first_name = self.first_name or name_of(optimizer, optimizer)
        weakref.finalize(optimizer, self._gone, id(optimizer)).atexit = False

    def _gone(self, key: int) -> None:
        """An optimizer is gone: another one may get its address."""
        self._stepped = [found for found in self._stepped if found() is not None]
        free = min([0, *self.counts]) - 1
        self.counts[free] = self.counts.pop(key, 0)
        self._ran.pop(key, None)

    def _awaits_others(self) -> bool:
        """Whether an optimizer has not stepped yet, and may come later: not one that wraps another."""
        groups = {id(group) for one in self.optimizers for group in one.param_groups}
        return any(
            id(one) not in self.counts and not any(id(group) in groups for group in one.param_groups)
            for one in self.made
        )

    def look_for_growth(self) -> None:
        """After a cycle: whether it needed more than all before it."""
        cycles, peak = self._recorder.cycles, self._recorder.peak_bytes
        if peak > self._highest:
            self._highest = peak
            self._higher += 1
            self._rose_at = cycles
        # Batches of random lengths set ever fewer new peaks; what is collected sets one after the other.
        often = 2 * self._higher > cycles - _FIRST_CYCLES
        self.growing = cycles > 2 * _FIRST_CYCLES and often and cycles - self._rose_at <= 1

    def is_enough(self, *, varied: bool) -> bool:
        """After a step; `varied`: training gives a model batches of many shapes."""
        if self.led is not None:
            return False
        here = (steps for key, steps in self.counts.items() if key >= 0)
        enough = min(here, default=ENOUGH_STEPS) >= ENOUGH_STEPS and not self._awaits_others()
        if enough and self._enough_since is None:
            self._enough_since = spent()
        onward = 0.0 if self._enough_since is None else spent() - self._enough_since
        # What PyTorch keeps of batches of many shapes grows with each of them: they have half of the time.
        half = (onward + self.time_left()) / 2
        self._varied_enough = self._varied_enough or onward > (half if varied else min(_NOT_ALIKE_S, half))
        return self._is_over(time.monotonic())

    def _is_over(self, now: float) -> bool:
        """Whether the script's time is over: that in all, or that after the first understood step."""
        self.cut_off = self.cut_off or now > self._deadline
        return self.cut_off or self.time_left() < 0

    def time_left(self) -> float:
        """Seconds that the script may still take."""
        limit = self._deadline - time.monotonic()
        if self._enough_since is None:
            return min(limit, self._onward_s)
        return min(limit, self._onward_s - (spent() - self._enough_since))


def spent() -> float:
    """The time, in seconds, less what the script waited for a CPU."""
    return time.monotonic() - _waited_for_a_cpu()


def _waited_for_a_cpu() -> float:
    """Seconds in which the main thread was ready to run and others had the CPUs.

    Login nodes are busy: without this, what a trace sees would depend on who else is there.
    """
    try:
        with open("/proc/self/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0  # a kernel that does not count it


def _with_gradients(optimizer: Any) -> FrozenSet[int]:
    groups = optimizer.param_groups
    return frozenset(id(p) for group in groups for p in group["params"] if p.grad is not None)


def flat(value: Any) -> List[Any]:
    """What nested lists and tables hold."""
    found: List[Any] = []
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, (list, tuple)):
            waiting.extend(item)
        elif isinstance(item, dict):
            waiting.extend(item.values())
        else:
            found.append(item)
    return found
