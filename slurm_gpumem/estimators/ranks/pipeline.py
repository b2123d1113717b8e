"""Pipeline parallel: the blocks are divided into stages; a rank runs one stage for several micro-batches.

With the schedule 1F1B (torch.distributed.pipelining, DeepSpeed and Megatron alike) stage i of N, counted from
0, holds the activations of at most N - i micro-batches at a time. The trace's batch is one micro-batch. What
comes before the blocks belongs to the first stage, what comes after them to the last. A stage receives its
input into a buffer, which stays until the backward pass of that micro-batch.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.explain.stream import Event
from slurm_gpumem.estimators.ranks.model import BACKWARD, FORWARD, RankModel
from slurm_gpumem.estimators.ranks.strategy import Strategy
from slurm_gpumem.estimators.ranks.units import ROOT, Units, block_names

_PASSES = (FORWARD, BACKWARD, "evaluate")
_MOVES = ("activations", "inputs")
"""Categories of what belongs to a micro-batch."""


def divided(model: RankModel, strategy: Strategy, ranks: int) -> Tuple[str, ...]:
    """Change the model's events to those of the stage that needs most; returns what was assumed."""
    names = block_names(model, strategy.options["wrap"])
    if len(names) < ranks:
        raise UsageError(
            f"strategy pp: the trace shows {len(names)} blocks to divide, fewer than {ranks} ranks.\n"
            "Name the class of the blocks (pp,wrap=CLASS), or use fewer GPUs."
        )
    micro_batches = strategy.number("micro_batches") or ranks
    stages = _Stages(model, names, ranks)
    written = [stages.events(stage, min(micro_batches, ranks - stage)) for stage in range(ranks)]
    heaviest = max(range(ranks), key=lambda stage: _peak(model, written[stage]))
    model.stream.events = written[heaviest]
    return (
        f"{len(names)} blocks in {ranks} stages, schedule 1F1B, {micro_batches} micro-batches of the batch "
        f"size given; stage {heaviest + 1} needs most",
    )


class _Stages:
    """Which stage each block of memory belongs to."""

    def __init__(self, model: RankModel, names: Sequence[str], ranks: int) -> None:
        self.model = model
        self.units = Units(model, names)
        self._last = ranks - 1
        self._stage_of = {name: at * ranks // len(names) for at, name in enumerate(names)}
        order = {name: at for at, name in enumerate(model.layers)}
        first = order.get(names[0], 0)
        self.of: Dict[int, int] = {}
        """By block; what every stage has is not in it."""
        for block, owner in model.owner.items():
            module = model.parameters[owner].module
            unit = self.units.of(module)
            around = 0 if order.get(module, first) < first else self._last
            self.of[block] = around if unit == ROOT else self._stage_of[unit]
        self.passes: List[_Pass] = []
        self._read()

    def _read(self) -> None:
        """Follow the passes: what is computed outside of the blocks belongs to the stage at work."""
        stage, phase, model = 0, "", self.model
        before: Optional[int] = None
        for at, event in enumerate(model.stream.events):
            if event.phase != phase:
                phase = event.phase
                stage = self._last if phase == BACKWARD else 0
                if phase == FORWARD:
                    self.passes.append(_Pass(at))
            if not event.allocates or phase not in _PASSES:
                continue
            site = model.stream.site(event)
            unit = self.units.of(site.module)
            if unit != ROOT and self._stage_of[unit] != stage:
                stage = self._stage_of[unit]
                if phase == FORWARD and before is not None:
                    self.passes[-1].received[stage] = before
            if event.block not in self.of and not site.is_cublas and site.module + site.operator:
                self.of[event.block] = stage
            if site.category == "activations":
                before = model.stream.site_of[event.block]
        for one in self.passes:
            one.find_end(model.stream.events)

    def events(self, stage: int, in_flight: int) -> List[Event]:
        """One stage's events, with what waits for its backward pass once for each micro-batch in flight."""
        model, written = self.model, []
        begins = {one.begin: one for one in self.passes}
        ends: Dict[int, List[Event]] = {}
        for at, event in enumerate(model.stream.events):
            if at in begins and begins[at].turn < begins[at].end:
                one = begins[at]
                taken = self._waiting(one, stage, in_flight, event)
                written += taken
                ends[one.end] = taken
            if self.of.get(event.block, stage) == stage:
                written.append(event)
            if at + 1 in ends:
                written += [model.release(block, event) for block in ends[at + 1]]
        return written

    def _waiting(self, one: _Pass, stage: int, in_flight: int, at: Event) -> List[Event]:
        """The input that is received, and all that the other micro-batches in flight keep."""
        stream = self.model.stream
        sites = [one.received[stage]] if stage in one.received else []
        kept = [
            stream.site_of[block]
            for block in one.alive(stream.events)
            if self.of.get(block) == stage and stream.sites[stream.site_of[block]].category in _MOVES
        ]
        sites += (sites + kept) * (in_flight - 1)
        return [Event(stream.new_block(site), site, at.phase, at.step) for site in sites]


class _Pass:
    """One forward pass and the backward pass that follows it."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.turn = self.end = begin
        """First event of the backward pass, and one past its last."""
        self.received: Dict[int, int] = {}
        """By stage the site of what it receives."""

    def find_end(self, events: Sequence[Event]) -> None:
        """Look for the backward pass; there is none where the forward pass is evaluated only."""
        at = self.begin
        while at < len(events) and events[at].phase == FORWARD:
            at += 1
        self.turn = self.end = at
        while self.end < len(events) and events[self.end].phase == BACKWARD:
            self.end += 1

    def alive(self, events: Sequence[Event]) -> List[int]:
        """Blocks that the forward pass leaves for the backward pass."""
        found: Dict[int, None] = {}
        for event in events[self.begin : self.turn]:
            if event.allocates:
                found[event.block] = None
            else:
                found.pop(event.block, None)
        return list(found)


def _peak(model: RankModel, events: Sequence[Event]) -> int:
    live = most = 0
    sizes: Dict[int, int] = {}
    for event in events:
        if event.allocates:
            sizes[event.block] = model.bytes_of(event)
            live += sizes[event.block]
            most = max(most, live)
        else:
            live -= sizes.pop(event.block, 0)
    return most
