"""ZeRO stages 1 to 3 as DeepSpeed allocates them (deepspeed/runtime/zero, read in August 2026).

All stages keep a copy of the rank's partition of the parameters in fp32, whatever the model's type, and the
optimizer's states for it. Stage 1 keeps whole gradients until the step and reduces them through a flat copy
of at most `reduce_bucket_size` elements. Stage 2 copies each gradient into a buffer of `reduce_bucket_size`
elements, which exists in the backward pass at that size for any model (twice with `overlap_comm`), and keeps
the partition. Stage 3 keeps such a buffer and the partition of the gradients all the time; parameters are
partitions too, gathered layer by layer. Those of at least `stage3_param_persistence_threshold` elements go
again after their layer has run, unless they come again within `stage3_max_reuse_distance` elements.
"""

from __future__ import annotations

from typing import Dict, List, Tuple

from slurm_gpumem.estimators.explain.stream import Event
from slurm_gpumem.estimators.ranks.model import BACKWARD, FORWARD, OPTIMIZER, Parameter, RankModel
from slurm_gpumem.estimators.ranks.strategy import Strategy
from slurm_gpumem.estimators.ranks.units import refuse_unnamed

_MASTER = 4
"""Bytes of an element of the optimizer's copy and its states."""
_PASSES = (FORWARD, "evaluate", BACKWARD)


def partitioned(model: RankModel, strategy: Strategy, ranks: int) -> Tuple[str, ...]:
    """Change the model's events to one rank's; returns what was assumed."""
    stage = int(strategy.name[-1])
    work = _Rank(model, strategy, ranks, stage)
    work.write()
    bucket = strategy.number("reduce_bucket_size")
    return (f"DeepSpeed's fp32 copy of each partition; reduce_bucket_size {bucket:,}",)


class _Rank:
    """Writes the events of one rank."""

    def __init__(self, model: RankModel, strategy: Strategy, ranks: int, stage: int) -> None:
        self.model = model
        self.stage = stage
        self.ranks = ranks
        trained = sum(parameter.elements for parameter in model.trained)
        self.partition = -(-trained // ranks)
        self.bucket = strategy.number("reduce_bucket_size")
        self.flat = min(trained, self.bucket)
        self.buffers = 2 if stage == 2 and strategy.switch("overlap_comm") else 1
        self.gathering = _Gathering(model, strategy) if stage == 3 else None
        self.whole: Dict[int, None] = {}
        """Gradients that are not in the partition yet."""
        self.in_backward: List[Event] = []
        self.kept: List[Event] = []
        self.in_step: List[Event] = []
        self.written: List[Event] = []

    def write(self) -> None:
        """Replace the events by one rank's."""
        model = self.model
        model.shard_states(self._piece, _MASTER)
        phase, started = "", False
        for event in model.stream.events:
            if event.phase != phase:
                if self.written:
                    self._end(phase, self.written[-1], event.phase)
                phase = event.phase
                if phase != "setup" and not started:
                    started = True
                    self._from_the_start(event)
                self._begin(phase, event)
            if self.gathering is not None and phase in _PASSES and event.allocates:
                self.written += self.gathering.before(event)
            self._copy(event)
        self._end(phase, self.written[-1], "")
        model.stream.events = self.written

    def _from_the_start(self, at: Event) -> None:
        take, itemsize = self.model.take, self.model.itemsize
        self.written.append(take(self.partition * _MASTER, "zero::fp32", "optimizer", at))
        if self.stage == 3:
            self.written.append(take(self.bucket * itemsize, "zero::bucket", "workspace", at))
            self.written.append(take(self.partition * itemsize, "zero::gradients", "gradients", at))
            for parameter in self.model.parameters:
                if self.gathering is not None and parameter not in self.gathering.persistent:
                    self.model.resize(parameter.block, self._piece(parameter) * itemsize)

    def _begin(self, phase: str, at: Event) -> None:
        take, itemsize = self.model.take, self.model.itemsize
        if phase == BACKWARD and self.stage == 2:
            for _ in range(self.buffers):
                self.in_backward.append(take(self.bucket * itemsize, "zero::bucket", "workspace", at))
            if not self.kept:
                self.kept.append(take(self.partition * itemsize, "zero::gradients", "gradients", at))
                self.written += self.kept
            self.written += self.in_backward
        if phase == OPTIMIZER:
            self.in_step.append(take(self.partition * _MASTER, "zero::fp32_gradients", "gradients", at))
            self.written += self.in_step
            self._drop(self.kept, at)
            self._drop_whole(at)

    def _end(self, phase: str, at: Event, following: str) -> None:
        if phase == BACKWARD:
            if self.stage != 2:
                flat = self.model.take(self.flat * self.model.itemsize, "zero::flat", "workspace", at)
                self.written += [flat, self.model.release(flat, at)]
            if self.stage > 1:
                self._drop_whole(at)
            self._drop(self.in_backward, at)
        if phase == OPTIMIZER:
            self._drop(self.in_step, at)
        if self.gathering is not None:
            self.written += self.gathering.end(phase, at, following)

    def _copy(self, event: Event) -> None:
        if event.block in self.model.gradients:
            if event.allocates:
                if self.stage > 1:
                    # The one before it is in the bucket.
                    self._drop_whole(event)
                self.whole[event.block] = None
            elif event.block not in self.whole:
                return
            else:
                del self.whole[event.block]
        self.written.append(event)

    def _drop(self, blocks: List[Event], at: Event) -> None:
        self.written += [self.model.release(block, at) for block in blocks]
        blocks.clear()

    def _drop_whole(self, at: Event) -> None:
        self.written += [Event(block, None, at.phase, at.step) for block in self.whole]
        self.whole.clear()

    def _piece(self, parameter: Parameter) -> int:
        return -(-parameter.elements // self.ranks)


class _Gathering:
    """Stage 3's parameters: gathered when their layer runs, kept where they come again soon."""

    def __init__(self, model: RankModel, strategy: Strategy) -> None:
        refuse_unnamed(model)
        self._model = model
        least = strategy.number("stage3_param_persistence_threshold")
        reach = strategy.number("stage3_max_reuse_distance")
        self._ahead = strategy.number("stage3_prefetch_bucket_size")
        self.persistent = [one for one in model.parameters if one.elements < least]
        self._sizes: Dict[str, int] = {}
        for parameter in model.parameters:
            if parameter.elements >= least:
                self._sizes[parameter.module] = self._sizes.get(parameter.module, 0) + parameter.bytes
        total = sum(self._sizes.values()) // model.itemsize
        self._stays: Dict[str, bool] = {}
        done = 0
        for module, size in self._sizes.items():
            done += size // model.itemsize
            # Until the backward pass comes back to it, everything behind it runs twice.
            self._stays[module] = 2 * (total - done) < reach
        self._total = total
        self._gathered: Dict[str, Event] = {}
        self._current = ""
        self._prefetched: List[Event] = []

    def before(self, event: Event) -> List[Event]:
        """What happens before an allocation of a pass: its layer's parameters are gathered, others go."""
        module = self._model.stream.site(event).module
        found: List[Event] = []
        if module and not self._prefetched:
            size = min(self._ahead, self._total) * self._model.itemsize
            self._prefetched.append(self._model.take(size, "zero::prefetch", "workspace", event))
            found += self._prefetched
        if module not in self._sizes or module == self._current:
            return found
        if self._current and not (event.phase == FORWARD and self._stays[self._current]):
            found += self._let_go(self._current, event)
        self._current = module
        if module not in self._gathered:
            taken = self._model.take(self._sizes[module], "zero::gathered", "weights", event, module)
            self._gathered[module] = taken
            found.append(taken)
        return found

    def end(self, phase: str, at: Event, following: str) -> List[Event]:
        """A phase is over."""
        found: List[Event] = []
        if phase in (BACKWARD, "evaluate") or following == OPTIMIZER:
            for module in list(self._gathered):
                found += self._let_go(module, at)
            found += [self._model.release(block, at) for block in self._prefetched]
            self._prefetched.clear()
            self._current = ""
        return found

    def _let_go(self, module: str, at: Event) -> List[Event]:
        taken = self._gathered.pop(module, None)
        return [] if taken is None else [self._model.release(taken, at)]
