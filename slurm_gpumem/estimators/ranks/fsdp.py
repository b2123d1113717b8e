"""Fully sharded data parallel: parameters, gradients and states divided, gathered unit by unit.

FSDP2 (torch.distributed.fsdp._fully_shard, PyTorch 2.13) divides each parameter by rows. A unit is gathered
into one buffer and copied out into its parameters; in the forward pass the buffer stays until the next unit
has been gathered. In the backward pass the next unit's buffer is filled while one is at work; a unit's
gradients are copied into a buffer to be reduced, which stays until the next unit's is made, and the reduced
shard becomes the gradient. Buffers for gathering have a stream, and so a pool, of their own.

FSDP1 (torch.distributed.fsdp) keeps a unit's parameters in one flat tensor, gathers it in place, and lets
two units be gathered at a time. Gradients of the parts are concatenated before they are reduced.

The unit around the blocks stays gathered from the forward to the end of the backward pass in both.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.explain.stream import Event
from slurm_gpumem.estimators.ranks.model import BACKWARD, OPTIMIZER, Parameter, RankModel
from slurm_gpumem.estimators.ranks.strategy import Strategy
from slurm_gpumem.estimators.ranks.units import ROOT, Units, block_names, described

PASSES = ("forward", "evaluate", BACKWARD)


def sharded(model: RankModel, strategy: Strategy, ranks: int) -> Tuple[str, ...]:
    """Change the model's events to one rank's; returns what was assumed."""
    mixed = strategy.switch("mixed")
    if mixed and model.itemsize != 2:
        raise UsageError(
            f"strategy {strategy.name},mixed: mixed precision computes in bf16, but the trace is in "
            f"{model.trace.job.precision}. Trace with --precision bf16, or leave mixed out."
        )
    names = block_names(model, strategy.options["wrap"])
    work = _Rank(model, strategy, ranks, Units(model, names))
    work.write()
    whole = strategy.switch("whole")
    if whole:
        work.whole_first()
    assumed = [
        described(names, model.layers),
        f"parameters are divided {'after' if whole else 'before'} they are put on the GPU",
    ]
    if mixed:
        reduce = strategy.options["reduce"]
        assumed.append(f"parameters and states in fp32, gathered as bf16, gradients reduced as {reduce}")
    return tuple(assumed)


class _Rank:
    """Writes the events of one rank."""

    def __init__(self, model: RankModel, strategy: Strategy, ranks: int, units: Units) -> None:
        self.model = model
        self.ranks = ranks
        self.units = units
        self.flat = strategy.name.startswith("fsdp1")
        self.reshards = not strategy.name.endswith("grad-op")
        mixed = strategy.switch("mixed")
        self.stored = 4 if mixed else model.itemsize
        """Bytes of an element of the shards and of the states."""
        self.computed = model.itemsize
        """... of gathered parameters and of gradients as they are computed."""
        self.reduced = 4 if mixed and strategy.options["reduce"] == "fp32" else model.itemsize
        self.gathered: Dict[str, List[Event]] = {}
        self.shards: Dict[str, Event] = {}
        """Reduced gradients by unit."""
        self.reducing: Optional[Event] = None
        self.whole: Dict[int, None] = {}
        """Gradients that are not reduced yet."""
        self.written: List[Event] = []

    def write(self) -> None:
        """Replace the events by one rank's."""
        model = self.model
        model.shard_states(self._piece, self.stored if self.stored != self.computed else None)
        for parameter in model.parameters:
            model.resize(parameter.block, self._piece(parameter) * self.stored)
        current, phase, started = ROOT, "", False
        for event in model.stream.events:
            if event.phase != phase:
                if self.written:
                    self._end(phase, current, self.written[-1], event.phase)
                current, phase = ROOT, event.phase
            module = model.stream.site(event).module if event.allocates else ""
            if phase in PASSES and event.allocates and (module or phase == BACKWARD):
                if not started:
                    self._buffers(event)
                    started = True
                self._gather(ROOT, event)
            if phase in PASSES and event.allocates:
                unit = self.units.of(module)
                if unit != current and not (phase == BACKWARD and unit == ROOT):
                    current = self._move(phase, current, unit, event)
            self._copy(event)
        self._end(phase, current, self.written[-1], "")
        model.stream.events = self.written

    def whole_first(self) -> None:
        """The whole model is on the GPU before it is divided."""
        model, events = self.model, self.model.stream.events
        stored = sum(one.elements * self.stored for one in model.parameters)
        shards = sum(self._piece(one) * self.stored for one in model.parameters)
        first = next((at for at, event in enumerate(events) if event.phase != "setup"), len(events))
        at = events[max(first - 1, 0)]
        rest = model.take(stored - shards, "fsdp::undivided", "weights", at)
        model.stream.events = [*events[:first], rest, model.release(rest, at), *events[first:]]

    def _buffers(self, at: Event) -> None:
        """What gathering keeps: FSDP2's pool holds the buffers of two units that follow each other."""
        if self.flat:
            return
        order = [ROOT, *self.units.names]
        sizes = [self._whole(unit) * self.computed for unit in order]
        pairs = [one + two for one, two in zip(sizes, sizes[1:])] or sizes
        self.written.append(self.model.take(max(pairs), "fsdp::all_gather", "workspace", at))

    def _move(self, phase: str, old: str, new: str, at: Event) -> str:
        """The next unit begins."""
        if phase == BACKWARD:
            if old != ROOT:
                self._reduce(old, at)
            self._gather(new, at)
            if self.flat:
                following = list(reversed(list(self.units.names)))
                place = following.index(new) + 1
                if place < len(following):
                    self._gather(following[place], at)
            return new
        if self.flat:
            # The one before it is let go only when the next one has been gathered.
            self._gather(new, at)
        if old != ROOT and self.reshards:
            self._free(old, at)
        if not self.flat:
            self._gather(new, at)
        return new

    def _end(self, phase: str, current: str, at: Event, following: str) -> None:
        """A phase ends."""
        if phase == BACKWARD:
            if current != ROOT:
                self._reduce(current, at)
            self._reduce(ROOT, at)
            for unit in list(self.gathered):
                self._free(unit, at)
            if self.reducing is not None:
                self.written.append(self.model.release(self.reducing, at))
                self.reducing = None
        elif phase in PASSES and current != ROOT and self.reshards:
            self._free(current, at)
        if phase == "evaluate" or following == OPTIMIZER:
            for unit in list(self.gathered):
                self._free(unit, at)

    def _gather(self, unit: str, at: Event) -> None:
        if unit in self.gathered or not self.units.parameters[unit]:
            return
        model = self.model
        if self.flat:
            blocks = [model.take(self._whole(unit) * self.computed, "fsdp::gathered", "weights", at, unit)]
        else:
            blocks = [
                model.take(size * self.ranks * self.computed, "fsdp::gathered", "weights", at, unit)
                for size in self._pieces(unit)
            ]
        self.written += blocks
        self.gathered[unit] = blocks

    def _free(self, unit: str, at: Event) -> None:
        self.written += [self.model.release(block, at) for block in self.gathered.pop(unit, [])]

    def _reduce(self, unit: str, at: Event) -> None:
        """A unit's gradients are there: its parameters go, the gradients are reduced to a shard."""
        model = self.model
        trained = [index for index in self.units.parameters[unit] if model.parameters[index].trained]
        elements = sum(self._piece(model.parameters[index]) for index in trained)
        if not self.flat or not trained:
            self._free(unit, at)
        if not trained:
            return
        if self.reducing is not None:
            self.written.append(model.release(self.reducing, at))
        operator = "fsdp::cat" if self.flat else "fsdp::reduce_scatter"
        reducing = model.take(elements * self.ranks * self.reduced, operator, "workspace", at, unit)
        self.written.append(reducing)
        self._drop_whole_gradients(unit, at)
        self._free(unit, at)
        shard = model.take(elements * self.stored, "fsdp::shard", "gradients", at, unit)
        self.written.append(shard)
        if unit in self.shards:
            # It is added to the shard that is there.
            self.written.append(model.release(shard, at))
        else:
            self.shards[unit] = shard
        self.reducing = None if self.flat else reducing
        if self.flat:
            self.written.append(model.release(reducing, at))

    def _drop_whole_gradients(self, unit: str, at: Event) -> None:
        numbers = set(self.units.parameters[unit])
        for block in [b for b in self.whole if self.model.owner[b] in numbers]:
            self.written.append(Event(block, None, at.phase, at.step))
            del self.whole[block]

    def _copy(self, event: Event) -> None:
        """An event of the trace: whole gradients live until they are reduced, then their shard does."""
        if event.block not in self.model.gradients:
            self.written.append(event)
            return
        if event.allocates:
            self.whole[event.block] = None
            self.written.append(event)
            return
        if event.block in self.whole:
            del self.whole[event.block]
            self.written.append(event)
        unit = self.units.of(self.model.parameters[self.model.owner[event.block]].module)
        shard = self.shards.pop(unit, None)
        if shard is not None:
            self.written.append(self.model.release(shard, event))

    def _whole(self, unit: str) -> int:
        """Elements of a gathered unit, with what makes it divisible."""
        return sum(self._pieces(unit)) * self.ranks

    def _pieces(self, unit: str) -> List[int]:
        """Elements of each parameter's shard."""
        return [self._piece(self.model.parameters[index]) for index in self.units.parameters[unit]]

    def _piece(self, parameter: Parameter) -> int:
        """Elements of a parameter's shard; a flat tensor is divided anywhere."""
        return -(-parameter.elements // self.ranks) if self.flat else parameter.shard(self.ranks)
