"""Batch sizes at which an estimate is made, and how others lie between them.

The caching allocator is chaotic: one sample more may need a little less. A scheduler's question must not get
such an answer. So estimates are made at powers of two only, each at least as much as the one below, and a
batch size between two of them gets its share of both. A request depends on
where whole shards lie, so it is decided at STEPS places between two powers of two, from the peaks there.
"""

from __future__ import annotations

from typing import Callable, Tuple

from slurm_gpumem.estimators.structural.replay import Replay
from slurm_gpumem.estimators.structural.stream import ACTIVATIONS
from slurm_gpumem.units import MIB

STEPS = 16
_GROWING = 0.35
"""Where activations are this share of a job, half its batch cannot need more."""

Anchors = Tuple[Tuple[float, int], ...]


def anchors(batch: int) -> Anchors:
    """(share, batch size) of the powers of two around a batch size; one where it is one itself."""
    below = 1 << (batch.bit_length() - 1)
    if below == batch:
        return ((1.0, batch),)
    above = (batch - below) / below
    return ((1 - above, below), (above, 2 * below))


def grows(result: Replay, total_mib: float) -> bool:
    """Whether so much of a job of this size scales with its batch that half the batch cannot need more."""
    return result.at_peak[ACTIVATIONS] > _GROWING * total_mib * MIB


def climb(low: float, high: float, share: float, decide: Callable[[float], float]) -> float:
    """A value between those at two anchors, `share` of the way up; `decide` says it, and it never falls.

    It is decided at STEPS places and lies between them in a straight line: few numbers tell all of it.
    """
    if share <= 0 or high <= low:
        return low if share <= 0 else max(low, high)
    reached = min(int(share * STEPS), STEPS - 1)
    below = low
    for step in range(1, reached + 1):
        below = max(below, min(high, decide(step / STEPS)))
    above = high if reached + 1 == STEPS else max(below, min(high, decide((reached + 1) / STEPS)))
    return below + (above - below) * (share * STEPS - reached)
