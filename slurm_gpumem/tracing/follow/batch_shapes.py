"""Whether training gives a model batches of many shapes: what PyTorch keeps then depends on their order."""

from __future__ import annotations

from typing import Any, Dict, Optional, Set, Tuple

from slurm_gpumem.tracing.follow.model_state import tensors_in

Shapes = Tuple[Tuple[int, ...], ...]
_MANY = 4
"""Of a model's batches: more than full ones, a last one that is smaller, and two stages."""
_DRAWN = 3
"""Of batches in no order. After a last batch comes a full one or the next stage's, but after no second shape
is there a choice; where shapes are drawn, each may follow each."""


class BatchShapes:
    """The shapes of one model's batches, in their order."""

    def __init__(self) -> None:
        self._batches: Set[Shapes] = set()
        self._next: Dict[Tuple[Shapes, Shapes], Set[Any]] = {}
        """Batches with their answers, and other ones that came right after each."""
        self._last: Optional[Tuple[Shapes, Shapes]] = None

    def add(self, batch: Shapes, answer: Shapes) -> None:
        """A batch, and what the model made of it: a number beside a batch may decide how large that is (the
        scale of a picture), or nothing (a step, a temperature)."""
        self._batches.add(batch)
        here = batch, answer
        self._next.setdefault(here, set())
        if self._last is not None and self._last != here:
            self._next[self._last].add(here)
        self._last = here

    @property
    def varied(self) -> bool:
        """Whether there are many, or some that come as if they were drawn."""
        choices = sum(len(others) > 1 for others in self._next.values())
        return len(self._batches) >= _MANY or (len(self._next) >= _DRAWN and choices > 1)


def shapes_in(value: Any) -> Shapes:
    """Of the tensors of a call's inputs, or of its answer."""
    return tuple(tuple(tensor.shape) for tensor in tensors_in(value))
