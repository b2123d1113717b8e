"""The recorder of a whole script: as a step's recorder, for as long as the script runs.

Training repeats itself. A cycle (from one step of the first optimizer to its next) that does what the one
before it did is dropped, so that a thousand steps take as much room as three.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from slurm_gpumem.tracing.cuda.autocast import Autocast
from slurm_gpumem.tracing.engine.recorder import Recorder
from slurm_gpumem.tracing.engine.recording import Block, Guess
from slurm_gpumem.tracing.script.script_places import ScriptPlaces

_FEW = 512
_GIB = 1 << 30
_TOO_MUCH = 2
"""Times the GPU's memory at which a script runs out of it. Less is counted, so that the answer is how much it
needs; more is a script that looks for the largest batch that fits."""
KEPT_CYCLES = 3
"""The first ones stay whatever they do: the first step makes states, the second is the first usual one."""


class ScriptRecorder(Recorder):
    """Notes allocations of everything that the process does on "cuda"."""

    places: ScriptPlaces

    def __init__(
        self,
        places: ScriptPlaces,
        autocast: Autocast,
        guess: Guess,
        *,
        gpu_bytes: int = 1 << 50,
        every_few: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(places, autocast, guess)
        self.off = False
        """In forked processes nothing is noted."""
        self.gpu_bytes = gpu_bytes
        """Of the GPU that the trace is for."""
        self.live_bytes = 0
        self.peak_bytes = 0
        self.most_bytes = 0
        """The same since the script last asked to forget it (`reset_peak_memory_stats`)."""
        self.cycles = 0
        self.dropped = 0
        self.grown_bytes = 0
        """What repeated cycles left behind beyond what the ones before them did."""
        self._start = (0, 0)
        """First event and first block of the cycle at work."""
        self._last: Optional[List[Tuple[Any, ...]]] = None
        self._pass = (0, 0, 0)
        """First event and first block of the pass at work, and the peak before it."""
        self._silent = 0
        self.emptied: List[int] = []
        """Events before which the script gave cached memory back."""
        self.drops = True
        """Whether cycles that are alike are dropped."""
        self.calls = 0
        """Operators that the script has run."""
        self._every_few = every_few
        """Called every few hundred operators ..."""
        self.due = False
        """... and before the next one where this is set: some take seconds."""
        self.loading = 0
        """Whether a loader makes a batch: what it does on the CPU is its own."""

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, operators run as if nothing was traced."""
        before, self.off = self.off, True
        try:
            yield
        finally:
            self.off = before

    @contextmanager
    def loads(self) -> Iterator[None]:
        """Inside, a loader makes a batch."""
        self.loading += 1
        try:
            yield
        finally:
            self.loading -= 1

    def empty_cache(self) -> None:
        """`torch.cuda.empty_cache`: what is free goes back to the driver."""
        if not self.off and self.emptied[-1:] != [len(self.events)]:
            self.emptied.append(len(self.events))

    def begin_again(self) -> None:
        """Forget all that was noted: what went on until here was no training."""
        self.blocks.clear()
        self.events.clear()
        self.phases.clear()
        self.emptied.clear()
        self._handles.clear()
        self._live.clear()
        self.live_bytes = self.peak_bytes = self.most_bytes = 0
        self._start = self._pass[:2]

    def forget_from(self, event: int, step: int) -> None:
        """Forget a step that began with this event and failed."""
        del self.events[event:]
        self.phases = [phase for phase in self.phases if phase[2] < step]
        self.kernels.by_step.pop(step, None)

    @contextmanager
    def unnoted(self) -> Iterator[None]:
        """Inside, new tensors are not noted."""
        self._silent += 1
        try:
            yield
        finally:
            self._silent -= 1

    def note(self, tensor: Tensor, operator: str = "", category: str = "", module: str = "") -> None:
        """Note a tensor's storage if it is new."""
        if not self._silent:
            super().note(tensor, operator, category, module)

    # -- Allocations -----------------------------------------------------------------------------

    def _add(self, block: Block) -> int:
        if max(block.nbytes, (self.live_bytes + block.nbytes) // _TOO_MUCH) > self.gpu_bytes:
            raise torch.cuda.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {block.nbytes / _GIB:.2f} GiB, with "
                f"{self.live_bytes / _GIB:.2f} GiB allocated, on a GPU of {self.gpu_bytes / _GIB:.2f} GiB"
            )
        number = super()._add(block)
        self.live_bytes += block.nbytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        self.most_bytes = max(self.most_bytes, self.live_bytes)
        return number

    def _gone(self, key: int) -> None:
        number = self._live.get(key, (-1, None))[0]
        super()._gone(key)
        if number >= 0:
            self.live_bytes -= self.blocks[number].nbytes

    def workspace(self, nbytes: int, operator: str, call: Any = None) -> None:
        """Note a block that exists only while an operator runs."""
        super().workspace(nbytes, operator, call)
        self.live_bytes -= nbytes if nbytes or call else 0

    def drop(self, number: int) -> None:
        """The block that `take` gave goes."""
        super().drop(number)
        self.live_bytes -= self.blocks[number].nbytes

    def elsewhere(self, make: Callable[[], Any]) -> Any:
        """Make tensors that are not on the GPU, though they look like it."""
        with self.unnoted():
            result = make()
        with torch._C.DisableTorchFunction():
            for tensor in pytree.tree_leaves(result):
                plain = isinstance(tensor, Tensor) and tensor.layout == torch.strided
                if plain and tensor.untyped_storage()._cdata not in self._live:
                    self.skip(tensor)
        return result

    # -- Cycles ----------------------------------------------------------------------------------

    def end_cycle(self) -> bool:
        """The first optimizer has stepped; whether the cycle was like the one before it, and dropped."""
        self.cycles += 1
        first_event, first_block = self._start
        signature = self._signature(first_event, first_block)
        same = self.drops and self._last == signature and self.cycles > KEPT_CYCLES
        if same:
            self._forget(first_event, first_block)
        self._last = signature
        self._start = (len(self.events), len(self.blocks))
        # Later cycles get the shares of the last one that stays in any case, so that they can be alike.
        (self.shares.keep if self.cycles < KEPT_CYCLES else self.shares.again)()
        return same

    def _signature(self, first_event: int, first_block: int) -> List[Tuple[Any, ...]]:
        """The cycle's events, releases counted from where they happen."""
        count = first_block
        found: List[Tuple[Any, ...]] = []
        for event in self.events[first_event:]:
            if event >= 0:
                block = self.blocks[event]
                found.append((block.operator, block.nbytes, block.call))
                count += 1
            else:
                found.append((~event - count,))
        return found

    def _forget(self, first_event: int, first_block: int) -> None:
        """Take the last cycle out; what it left alive takes the places of what it released.

        That may have been made by the cycle before it, or earlier (a batch that is loaded ahead). What has no
        place is what a script collects; it is counted apart.
        """
        made = len(self.blocks) - first_block
        released = [~event for event in self.events[first_event:] if event < 0 and ~event < first_block]
        free = dict.fromkeys(released)
        alike: Dict[Tuple[int, str], Deque[int]] = {}
        for place in released:
            alike.setdefault(self._sort(self.blocks[place]), deque()).append(place)
        for key, (number, reference) in list(self._live.items()):
            if number >= first_block:
                block = self.blocks[number]
                place = number - made
                if place not in free:
                    others = alike.get(self._sort(block), deque())
                    while others and others[0] not in free:
                        others.popleft()
                    place = others[0] if others else -1
                self._live[key] = (place, reference)
                if place >= 0:
                    del free[place]
                else:
                    self.grown_bytes += block.nbytes
                    self.live_bytes -= block.nbytes
        del self.events[first_event:], self.blocks[first_block:]
        self.events += [~number for number in free]
        while self.phases and self.phases[-1][0] >= first_event:
            self.phases.pop()
        while self.emptied and self.emptied[-1] > first_event:
            self.emptied.pop()
        self.kernels.by_step.pop(self.step, None)
        self.dropped += 1

    # -- Inference -------------------------------------------------------------------------------

    def end_pass(self, *, forget: bool) -> None:
        """A model is called again without training; what set no new peak is dropped if there is too much."""
        first_event, first_block, peak = self._pass
        if forget and self.peak_bytes == peak:
            self._forget(first_event, first_block)
        self._pass = (len(self.events), len(self.blocks), self.peak_bytes)

    def repeat_growing(self, marks: Sequence[Tuple[int, int]], more: int, most_events: int) -> bool:
        """Add `more` rounds like the last one, each larger by what the rounds between the marks grew.

        False where the first, the last and the one before it did not do the same: a round releases what the
        one before it made, so that it can only follow one like itself. Not every round is added: several
        become one that grows as much as they do, so that `most_events` suffice.
        """
        first, last = self._round(marks[0], marks[1]), self._round(marks[-2], marks[-1])
        others = first, self._round(marks[-3], marks[-2])
        if any([one[0] for one in other] != [one[0] for one in last] for other in others):
            return False
        start, made = marks[-2][1], marks[-1][1] - marks[-2][1]
        each = [(two[1] - one[1]) / (len(marks) - 2) for one, two in zip(first, last)]
        kept = self._kept(marks)
        rounds = max(1, min(more, most_events // max(1, len(last))))
        begun = len(self.events)
        before = 0
        try:
            for number in range(1, rounds + 1):
                after = more * number // rounds
                count = len(self.blocks)
                for (what, nbytes, index), growth in zip(last, each):
                    if isinstance(what, int):
                        self.events.append(~(count + what))
                        self.live_bytes -= self.blocks[count + what].nbytes
                        continue
                    size = nbytes * (after - before) if index in kept else round(nbytes + growth * after)
                    self._add(replace(self.blocks[start + index], shape=(), nbytes=size))
                    count += 1
                before = after
        finally:  # also where the GPU's memory does not suffice for all of them
            self._hold_those_of_the_last(begun, made)
        return True

    def _hold_those_of_the_last(self, begun: int, made: int) -> None:
        """What the script still holds of rounds that were repeated since this event is that of the last."""
        gone = {~event for event in self.events[begun:] if event < 0}
        held = {number for number, _ in self._live.values()} - gone
        for key, (number, reference) in list(self._live.items()):
            if number in gone:
                while number in gone:
                    number += made
                # Not made before the memory ended, or another's: then nothing is released with it.
                number = -1 if number >= len(self.blocks) or number in held else number
                held.add(number)
                self._live[key] = (number, reference)

    def _round(self, begin: Tuple[int, int], end: Tuple[int, int]) -> List[Tuple[Any, int, int]]:
        """Its events: (operator, bytes, which block of the round), or (how far back, 0, -1) of a release."""
        count = begin[1]
        found: List[Tuple[Any, int, int]] = []
        for event in self.events[begin[0] : end[0]]:
            if event >= 0:
                found.append((self.blocks[event].operator, self.blocks[event].nbytes, event - begin[1]))
                count += 1
            else:
                found.append((~event - count, 0, -1))
        return found

    def _kept(self, marks: Sequence[Tuple[int, int]]) -> Set[int]:
        """Blocks of a round, counted from its first, that no later one releases: seen of the first."""
        start = marks[0][1]
        gone = {~event for event in self.events[marks[0][0] : marks[-1][0]] if event < 0}
        return {number - start for number in range(start, marks[1][1]) if number not in gone}

    @staticmethod
    def _sort(block: Block) -> Tuple[int, str]:
        """Blocks of one sort may take each other's place."""
        return block.nbytes, block.operator

    # -- Operators -------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator and note what it allocates."""
        kwargs = kwargs or {}
        if self.off:
            return func(*args, **kwargs)
        self.calls += 1
        if self.due or self.calls % _FEW == 0:
            self.due = False
            self._every_few()
        if kwargs.get("pin_memory"):  # of code that autograd calls, where no other mode is at work
            kwargs = {**kwargs, "pin_memory": False}
        with torch._C.DisableTorchFunction():
            if _on_cpu(args) and _on_cpu(kwargs.values()):
                return func(*args, **kwargs)
            return super().__torch_dispatch__(func, types, args, kwargs)


def _on_cpu(values: Iterable[Any]) -> bool:
    """Whether an operator has to do with tensors of the CPU only: there is nothing to note.

    Scripts make batches of them number by number, so that this is asked often.
    """
    for value in values:
        if isinstance(value, Tensor):
            # What is known of a value that came from the GPU is followed.
            if value.device.type != "cpu" or value.layout != torch.strided or vars(value):
                return False
        elif isinstance(value, (list, tuple)):
            if not _on_cpu(value):
                return False
        elif isinstance(value, torch.device) and value.type != "cpu":
            return False
    return True
