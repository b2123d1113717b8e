"""Which request to make of a corrected peak: at each one, weigh what it holds against what it wastes.

How far above or below its corrected peak a job's need may lie is known as a distribution: steps of the job's
own spread, measured on architectures that the trees had not seen. Each possible request then has a share
of cases in which the job would not fit, one in which it takes the shards that it needs (or one more), and one
in which it wastes little. The request with the highest worth is made; `Preferences` weigh the cases. So
a request ends at a whole shard where that is near, certain jobs get a narrow one, and jobs that will waste
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
"""Shares of jobs at which a distribution states its steps."""
ENOUGH = 0.995
"""A request that holds for this share of cases is the widest that is considered."""
_COST = 0.05
"""Cost of each further multiple of the peak: a safe request for a whole GPU helps nobody."""
_MOST_WHOLE = 40
_MOST_MARGIN = 3.0

Option = Tuple[float, float, float]
"""A request, the share of cases above it, and its worth in the others."""


@dataclass(frozen=True)
class Preferences:
    """What is wanted of requests besides that jobs fit: the worth of each outcome."""

    exact: float
    """Worth of the exact shard count that a job needs."""
    one_more: float
    """Worth of one shard more than that."""
    one_less: float
    """Worth of one shard less, whether the job fits anyway or not."""
    waste: float
    """A request of at most this multiple of the need wastes little."""
    low_waste: float
    """Worth of a request that wastes little."""


FROM_TEXT = Preferences(exact=1.0, one_more=1.0, one_less=0.0, waste=1.25, low_waste=0.45)
FROM_TRACE = Preferences(exact=1.0, one_more=0.6, one_less=0.3, waste=1.1, low_waste=0.1)
"""A trace knows its peak so well that the exact shard count is within reach."""


@dataclass(frozen=True)
class RequestPolicy:
    """What decides the requests of a group of jobs."""

    steps: Tuple[float, ...]
    """At LEVELS: how far above its peak, in spreads, a job's need is at most in that share of cases."""
    price: float
    """Cost of a job that does not fit, in units of an exact shard count's worth."""
    wider: float
    """Factor by which the spread is widened outside the range of the measurements."""
    coverage: float
    price_mib: float = 0.0
    """Above 0: a job that does not fit costs this memory; the request is the one that costs least in all."""


def share_below(steps: Sequence[float], step: float) -> float:
    """Share of cases in which the need is at most `step` spreads above the peak."""
    at = bisect_right(steps, step)
    if at == 0:
        return 0.0
    if at == len(steps):
        return 1.0
    low, high = steps[at - 1], steps[at]
    return LEVELS[at - 1] + (LEVELS[at] - LEVELS[at - 1]) * (step - low) / (high - low)


def options(
    peak: float, moved: float, spread: float, steps: Sequence[float], preferences: Preferences = FROM_TEXT
) -> List[Option]:
    """The requests to consider for a corrected peak, in MiB less `moved`.

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
            preferences.exact * (these - fewer)
            + preferences.one_more * (fewer - two_fewer)
            + preferences.one_less * (more - these)
        )
        low_waste = 1 - below((request + moved) / preferences.waste - moved)
        worth = right + preferences.low_waste * low_waste - _COST * request / peak
        made.append((request, 1 - below(request), worth))
        if below(request) >= ENOUGH:
            break
    return made


def request_for(
    peak: float, moved: float, spread: float, policy: RequestPolicy, preferences: Preferences = FROM_TEXT
) -> float:
    """The request for a corrected peak."""
    if policy.price_mib:
        return cheapest(peak, spread, policy)
    return choose(options(peak, moved, spread, policy.steps, preferences), policy.price)


def cheapest(peak: float, spread: float, policy: RequestPolicy) -> float:
    """The request whose memory, and the price of the cases that it does not hold, are least together.

    A small job's doubt is cheap to cover, a large one's is not: capacity is counted as a sum over all jobs.
    """
    best, least = peak, peak + policy.price_mib * (1 - share_below(policy.steps, 0.0))
    for level, step in zip(LEVELS, policy.steps):
        request = peak * exp(min(step * spread, _MOST_MARGIN))
        cost = request + policy.price_mib * (1 - level)
        if step > 0 and cost < least:
            best, least = request, cost
    return best


def choose(found: Sequence[Option], price: float) -> float:
    """The request that is worth most when a job that does not fit costs `price`."""
    return max(found, key=lambda option: option[2] - price * option[1])[0]
