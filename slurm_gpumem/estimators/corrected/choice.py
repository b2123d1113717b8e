"""Which request to make of a corrected peak: at each one, weigh what it holds against what it wastes.

How far above or below its corrected peak a job's need may lie is known as a distribution: steps of the job's
own spread, measured on architectures that the trees had not seen. Each possible request then has a share
of cases in which the job would not fit, one in which it takes the shards that it needs (or one more), and one
in which it wastes little. The one that is worth most is made; what counts how much is a matter of taste. So
a request ends at a whole shard where that is near, sure jobs get a narrow one, and jobs that will waste
shards in any case get a safe one.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import ceil, exp, log
from typing import List, Sequence, Tuple

SHARD_MIB = 1024
LEVELS = (
    *(0.0, 0.01, 0.02),
    *(n / 20 for n in range(1, 19)),
    *(n / 100 for n in range(91, 100)),
    *(0.9925, 0.995, 0.9975, 1.0),
)
"""Shares of jobs whose steps a distribution tells."""
ENOUGH = 0.995
"""A request that holds for this share of cases is the widest that comes into question."""
_COST = 0.05
"""What each further peak in the request costs: nobody is helped by a safe request for whole GPUs."""
_MOST_WHOLE = 40
_MOST_MARGIN = 3.0

Option = Tuple[float, float, float]
"""A request, the share of cases above it, and its worth in the others."""


@dataclass(frozen=True)
class Taste:
    """What is wanted of requests, beside that jobs fit."""

    exact: float
    """What the shard count that a job needs is worth,"""
    one_more: float
    """one more than that,"""
    one_less: float
    """and one less, where the job fits all the same or does not."""
    waste: float
    """A request of at most this much of the need wastes little,"""
    thrift: float
    """and that is worth so much."""


FROM_TEXT = Taste(exact=1.0, one_more=1.0, one_less=0.0, waste=1.25, thrift=0.45)
FROM_TRACE = Taste(exact=1.0, one_more=0.6, one_less=0.3, waste=1.1, thrift=0.1)
"""A trace knows its peak so well that the exact shard count can be hoped for."""


@dataclass(frozen=True)
class Stakes:
    """What decides the requests of a group of jobs."""

    steps: Tuple[float, ...]
    """At LEVELS: how many spreads above its peak a job's need lies at most in that share of cases."""
    price: float
    """What a job that does not fit costs, in shard counts that are right."""
    wider: float
    """How many times wider the spread is taken outside the range of the measurements."""
    coverage: float


def share_below(steps: Sequence[float], step: float) -> float:
    """Share of cases in which the need is at most so many spreads above the peak."""
    at = bisect_right(steps, step)
    if at == 0:
        return 0.0
    if at == len(steps):
        return 1.0
    low, high = steps[at - 1], steps[at]
    return LEVELS[at - 1] + (LEVELS[at] - LEVELS[at - 1]) * (step - low) / (high - low)


def options(
    peak: float, moved: float, spread: float, steps: Sequence[float], taste: Taste = FROM_TEXT
) -> List[Option]:
    """The requests that come into question for a corrected peak, in MiB less `moved`.

    `moved` is what the job's memory holds beside `peak` and is known: shards are counted with it.
    """
    margins = [min(step * spread, _MOST_MARGIN) for step in steps]
    found = {peak, *(peak * exp(margin) for margin in margins if margin > 0)}
    first, last = ceil((peak + moved) / SHARD_MIB), ceil((max(found) + moved) / SHARD_MIB)
    stride = max(1, (last - first) // _MOST_WHOLE)
    found.update(shards * SHARD_MIB - moved for shards in range(first, last + 1, stride))

    def below(memory: float) -> float:
        """Share of cases that need at most this."""
        return share_below(steps, log(memory / peak) / spread) if memory > 0 else 0.0

    made: List[Option] = []
    for request in sorted(request for request in found if request >= peak):
        shards = ceil((request + moved) / SHARD_MIB - 1e-9)
        two_fewer, fewer, these, more = (
            below((shards + change) * SHARD_MIB - moved) for change in (-2, -1, 0, 1)
        )
        right = (
            taste.exact * (these - fewer)
            + taste.one_more * (fewer - two_fewer)
            + taste.one_less * (more - these)
        )
        thrifty = 1 - below((request + moved) / taste.waste - moved)
        worth = right + taste.thrift * thrifty - _COST * request / peak
        made.append((request, 1 - below(request), worth))
        if below(request) >= ENOUGH:
            break
    return made


def request_for(peak: float, moved: float, spread: float, stakes: Stakes, taste: Taste = FROM_TEXT) -> float:
    """The request for a corrected peak."""
    return choose(options(peak, moved, spread, stakes.steps, taste), stakes.price)


def choose(found: Sequence[Option], price: float) -> float:
    """The request that is worth most when a job that does not fit costs `price`."""
    return max(found, key=lambda option: option[2] - price * option[1])[0]
