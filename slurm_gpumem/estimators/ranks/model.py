"""A traced model's parameters, and which gradients and optimizer states are theirs."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.explain.stream import Event, Stream
from slurm_gpumem.summaries.trace_types import PARAMETER, Polynomial, Site, Trace
from slurm_gpumem.summaries.types import Layer

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
_FEW = 0.01
"""Of all parameters: gradients that may stay without one."""
_LIKE_LINEAR = ("Linear", "Conv")


class Parameter(NamedTuple):
    """One parameter of the model."""

    block: int
    bytes: int
    itemsize: int
    module: str
    """The layer that it belongs to."""
    trained: bool
    rows: int
    """Its first dimension, which FSDP2 divides; the number of elements where it is not known."""

    @property
    def elements(self) -> int:
        """Its numbers."""
        return self.bytes // self.itemsize

    def shard(self, ranks: int) -> int:
        """Elements of the largest shard: whole rows, as torch.chunk divides them."""
        rows = -(-self.rows // ranks)
        return rows * (self.elements // max(self.rows, 1))


class RankModel:
    """A stream of events, with the parameters in it and the owner of each gradient and state."""

    def __init__(self, trace: Trace, layers: Sequence[Layer]) -> None:
        self.trace = trace
        self.stream = Stream(trace)
        self._allocation = {e.block: e for e in self.stream.events if e.allocates}
        self.itemsize = 2 if trace.job.precision == "bf16" else 4
        self.layers = {layer.name: layer for layer in layers}
        released = self.stream.released_at()
        kept = [e for e in self.stream.events if e.allocates and e.block not in released]
        # Traces of earlier versions do not say which weights are parameters.
        weights = [e for e in kept if self.stream.site(e).operator == PARAMETER] or [
            e for e in kept if self.stream.site(e).category == "weights"
        ]
        self._unknown: Dict[str, int] = {}
        """By layer: bytes of gradients without a parameter."""
        gradients = self._gradients(weights)
        self.parameters: Tuple[Parameter, ...] = tuple(
            self._parameter(event, index in gradients.values()) for index, event in enumerate(weights)
        )
        self.owner: Dict[int, int] = {**gradients, **self._states()}
        """The parameter of each block that is one, its gradient or the optimizer's."""
        self.gradients: Set[int] = set(gradients)
        for index, parameter in enumerate(self.parameters):
            self.owner[parameter.block] = index

    def refuse_unknown(self) -> None:
        """UsageError where it cannot be seen which parameters there are, or whose the gradients are."""
        if not self.parameters:
            raise UsageError("the trace shows no parameters, so nothing can be divided between GPUs")
        if sum(self._unknown.values()) > _FEW * sum(one.bytes for one in self.parameters):
            module = max(self._unknown, key=lambda name: self._unknown[name])
            raise UsageError(
                f"the trace does not show whose gradients those of {module or 'the model'} are, so they "
                "cannot be divided between GPUs"
            )

    @property
    def trained(self) -> List[Parameter]:
        """Those that have gradients."""
        return [parameter for parameter in self.parameters if parameter.trained]

    def bytes_of(self, event: Event) -> int:
        """Bytes of an event's block at the traced batch size."""
        return self.stream.site(event).bytes_at(self.trace.job.batch)

    def take(self, size: int, operator: str, category: str, at: Event, module: str = "") -> Event:
        """A new block, allocated in the phase of another event."""
        site = self.stream.add_site(Site((max(size, 1),), operator, module, category))
        return Event(self.stream.new_block(site), site, at.phase, at.step)

    @staticmethod
    def release(taken: Event, at: Event) -> Event:
        """Its release, in the phase of another event."""
        return Event(taken.block, None, at.phase, at.step)

    def resize(self, block: int, size: int) -> None:
        """Give a block another size."""
        self._give(block, (max(size, 1),))

    def divide(self, block: int, ranks: int) -> None:
        """Give a block its part of the size, at any batch."""
        before = self.stream.sites[self.stream.site_of[block]]
        self._give(block, tuple(-(-c // ranks) for c in before.bytes))

    def shard_states(self, piece: Callable[[Parameter], int], itemsize: Optional[int] = None) -> None:
        """The optimizer works on `piece` elements of each parameter, of another size where one is given."""
        for event in self.stream.events:
            owner = self.owner.get(event.block) if event.phase == OPTIMIZER and event.allocates else None
            if owner is not None:
                parameter = self.parameters[owner]
                wide = self.bytes_of(event) // parameter.elements
                self.resize(event.block, piece(parameter) * (itemsize or wide))

    def changed(self) -> Trace:
        """The trace with all changes."""
        return self.stream.trace()

    def _give(self, block: int, size: Polynomial) -> None:
        site = self.stream.add_site(replace(self.stream.sites[self.stream.site_of[block]], bytes=size))
        self.stream.site_of[block] = site
        self._allocation[block].site = site

    def _parameter(self, event: Event, trained: bool) -> Parameter:
        site, size = self.stream.site(event), self.bytes_of(event)
        elements = max(1, size // self.itemsize)
        return Parameter(
            event.block, size, self.itemsize, site.module, trained, self._rows(site.module, elements)
        )

    def _rows(self, module: str, elements: int) -> int:
        layer = self.layers.get(module)
        if layer is None or not layer.outputs or not layer.outputs[0]:
            return elements
        shape = layer.outputs[0]
        width = shape[1] if layer.kind.startswith("Conv") and len(shape) > 2 else shape[-1]
        if width <= 0 or elements % width:
            return elements
        if layer.kind.startswith(_LIKE_LINEAR):
            return width
        return elements // width if layer.kind.startswith("Embedding") else elements

    def _gradients(self, weights: Sequence[Event]) -> Dict[int, int]:
        """For each gradient's block the number of its parameter."""
        found: Dict[int, int] = {}
        free: Dict[Tuple[str, int], List[int]] = {}
        step: Optional[int] = None
        for event in self.stream.events:
            if not event.allocates or self.stream.site(event).category != "gradients":
                continue
            if event.step != step:
                step = event.step
                free = {}
                for index, weight in enumerate(weights):
                    key = (self.stream.site(weight).module, self.bytes_of(weight))
                    free.setdefault(key, []).append(index)
            waiting = free.get((self.stream.site(event).module, self.bytes_of(event)))
            if not waiting:
                # Shared weights: their gradient is added up where they are used last.
                same = [key for key in free if key[1] == self.bytes_of(event) and free[key]]
                waiting = free[same[0]] if same else None
            if waiting:
                found[event.block] = waiting.pop(0)
            else:
                self._unknown.setdefault(self.stream.site(event).module, self.bytes_of(event))
        return found

    def _states(self) -> Dict[int, int]:
        """Blocks of the optimizer: it walks through the parameters in their order, again and again."""
        found: Dict[int, int] = {}
        trained = [index for index, parameter in enumerate(self.parameters) if parameter.trained]
        sizes = [self.parameters[index].elements for index in trained]
        widths = (2, 4) if self.itemsize == 2 else (4,)
        """States may be wider than their parameter: fp32 of bf16."""
        at = 0
        for event in self.stream.events:
            if event.phase != OPTIMIZER or not event.allocates or not trained:
                continue
            size = self.bytes_of(event)
            for ahead in range(len(trained)):
                place = (at + ahead) % len(trained)
                if size in (sizes[place] * width for width in widths):
                    found[event.block] = trained[place]
                    at = place
                    break
        return found
