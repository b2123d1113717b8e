"""The largest batch that fits, found with few estimates: memory is nearly a line over the batch size."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Dict, List, Optional, Tuple

from slurm_gpumem.estimators.types import Estimate, TrainingJob

MOST = 1 << 20
"""No larger batch is looked for."""

Estimating = Callable[[TrainingJob], Estimate]


class BatchCurve:
    """Estimates of one job at any batch size, each made once."""

    def __init__(self, job: TrainingJob, again: Estimating) -> None:
        self._job = job
        self._again = again
        self._known: Dict[int, Estimate] = {}

    def at(self, batch: int) -> Estimate:
        """The estimate at a batch size."""
        if batch not in self._known:
            self._known[batch] = self._again(replace(self._job, batch_size=batch))
        return self._known[batch]

    def request_mib(self, batch: int) -> int:
        """What would be asked for."""
        return self.at(batch).request_mib

    def peak_mib(self, batch: int) -> int:
        """What it would take."""
        return self.at(batch).peak_mib

    def samples(self, first: int, last: int, count: int) -> List[Tuple[int, Estimate]]:
        """Estimates at about `count` batch sizes, evenly spread, both ends among them."""
        steps = max(1, min(count - 1, last - first))
        batches = sorted({first + round((last - first) * i / steps) for i in range(steps + 1)})
        return [(batch, self.at(batch)) for batch in batches]


def largest_batch(needs: Callable[[int], int], limit_mib: int, start: int) -> Optional[int]:
    """A batch whose need fits while the next one's does not; None when not even one sample fits.

    Need is not quite monotonous in the batch size (the allocator rounds), so a larger batch may fit by
    luck; the one returned does fit. Looks along the line through the two nearest known points.
    """
    fitting, failing = 0, 0
    batch = max(1, start)
    turn = 0
    while failing == 0 or failing - fitting > 1:
        fits = needs(batch) <= limit_mib
        fitting, failing = (batch, failing) if fits else (fitting, batch)
        if fitting >= MOST:
            return fitting
        batch = _next(needs, limit_mib, fitting, failing, fits, turn)
        turn += 1 if fitting and failing else 0
    return fitting or None


def _next(
    needs: Callable[[int], int], limit_mib: int, fitting: int, failing: int, fitted: bool, turn: int
) -> int:
    """The batch to try next: along the line, then close to where that led, and now and then in the middle."""
    if failing == 0:
        return min(fitting * 2, MOST)
    if fitting == 0 or turn % 3 == 2:
        return max(1, (fitting + failing) // 2)
    span = failing - fitting
    if turn % 3 == 1:
        near = max(1, span // 64)
        return fitting + near if fitted else max(fitting + 1, failing - near)
    low, high = needs(fitting), needs(failing)
    guess = fitting + int((limit_mib - low) / max(1, high - low) * span)
    return max(fitting + 1, min(guess, failing - 1))
