"""What operators and values ask of the recorder: a protocol, so that neither imports the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Optional, Protocol, Set, Tuple, Union

import torch
from torch import Tensor

from slurm_gpumem.summaries.trace_types import Convolution, Reduction
from slurm_gpumem.tracing.engine.module_stack import Places

Call = Union[Convolution, Reduction]
_MOST = 0.2
"""How far a share is from its mean at most."""
GOLDEN = 0.6180339887
"""Whose multiples, less their whole parts, lie evenly."""


@dataclass
class Block:
    """One observed allocation."""

    shape: Tuple[int, ...]
    """Empty if the storage holds more than this tensor's values."""
    itemsize: int
    nbytes: int
    operator: str
    module: str
    phase: str
    category: str = ""
    call: Optional[Call] = None
    """What determines the size of a library's workspace on the GPU."""
    stream: int = 0
    """0, or the number of the script's own stream that it is allocated for."""


@dataclass
class Guess:
    """What a model gets when it reads an unknown boolean, and whether one did."""

    truth: bool = True
    used: bool = False
    numbers: bool = False
    """Whether numbers of a tensor were made up."""
    reads: int = 0
    worse: bool = False
    """Whether numbers are greater than all others: scores of a model that is smaller than one before it."""

    def turn(self, smaller: bool) -> None:
        """A model is trained; a search that goes on with the best of its models takes the largest."""
        self.worse = smaller

    def next_number(self) -> float:
        """A number for one that is not known: ever less, as losses fall and never repeat.

        It is below one, as it may be an error or a score, and one when it is rounded.
        """
        self.reads += 1
        least, above = (1.4, 0.09) if self.worse else (0.55, 0.4)
        return least + above / (1 + self.reads / 100)


class Shares:
    """Shares that differ somewhat, as those of experts do: such blocks fit each other's places badly.

    They come in pairs, one above and one below its share, so that together they are what all of them share.
    """

    def __init__(self) -> None:
        self.count = self._kept = 0
        """Factors that were drawn."""

    def keep(self) -> None:
        """From here on `again` begins."""
        self._kept = self.count

    def again(self) -> None:
        """The same shares as after the last `keep`."""
        self.count = self._kept

    def factor(self) -> float:
        """The next one, from 1 - _MOST to 1 + _MOST."""
        pair, odd = divmod(self.count, 2)
        self.count += 1
        away = _MOST * (((pair + 1) * GOLDEN) % 1)
        return 1 - away if odd else 1 + away

    def parts(self, total: int, count: int) -> List[int]:
        """`total` in whole parts."""
        weights = [self.factor() for _ in range(count)]
        ends = [round(total * sum(weights[: n + 1]) / sum(weights)) for n in range(count)]
        return [end - start for start, end in zip([0, *ends], ends)]


class Drawn:
    """By how much one mask differs from its share: drawn once, the same for what is made from the mask."""

    def __init__(self, factor: Optional[float] = None) -> None:
        self._factor = factor
        self._number = -1

    def factor(self, shares: Shares) -> float:
        """The share's."""
        if self._factor is None:
            self._number = shares.count
            self._factor = shares.factor()
        elif self._number == shares.count:
            shares.factor()  # in a block that is computed again: it was drawn here the first time
        return self._factor


class Recording(Protocol):
    """Notes allocations and releases, and what was assumed."""

    guess: Guess
    places: Places
    phase: str
    step: int
    chance: torch.Generator
    flat_loops: Set[Tuple[str, bool]]
    uses_conv: bool
    uses_matmul: bool

    @property
    def shares(self) -> Shares: ...

    @property
    def thread(self) -> str: ...

    def note(self, tensor: Tensor, operator: str = "", category: str = "", module: str = "") -> None: ...

    def note_result(self, result: Any, operator: str) -> None: ...

    def skip(self, tensor: Tensor) -> None: ...

    def workspace(self, nbytes: int, operator: str, call: Optional[Call] = None) -> None: ...

    def take(self, nbytes: int, operator: str, category: str = "workspace", module: str = "") -> int: ...

    def drop(self, number: int) -> None: ...

    def once(self, what: str, nbytes: int, operator: str) -> None: ...

    def cublas(self, operator: str) -> None: ...

    def block_of(self, tensor: Tensor) -> Optional[Block]: ...

    def assume(self, remark: str) -> None: ...

    def assume_equal_shares(self, what: str) -> None: ...

    def warn_once(self, about: str, text: str) -> None: ...

    def has_warned(self, about: str) -> bool: ...
