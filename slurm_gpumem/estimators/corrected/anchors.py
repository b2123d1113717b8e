"""Batch sizes at which an estimate is made, and how others lie between them.

The caching allocator is chaotic: one sample more may need a little less. A scheduler's question must not get
such an answer. So estimates are made at powers of two only, each at least as much as the one below, and a
batch size between two of them gets its share of both.
"""

from __future__ import annotations

from typing import Tuple

from slurm_gpumem.estimators.structural.replay import Replay
from slurm_gpumem.estimators.structural.stream import ACTIVATIONS
from slurm_gpumem.units import MIB

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
