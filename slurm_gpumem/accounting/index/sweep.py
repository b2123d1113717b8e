"""How the time of a shared GPU is split: at each moment evenly over the jobs that are on it."""

from __future__ import annotations

from typing import Dict, Iterable, Iterator, List, Sequence, Tuple

Stay = Tuple[int, float, float]
"""(run, start, end) on one GPU."""


def split_evenly(stays: Sequence[Stay]) -> Dict[int, float]:
    """Seconds of the GPU that each run took: the time it was there, divided by how many were there."""
    taken = dict.fromkeys((run for run, _, _ in stays), 0.0)
    lasting = [stay for stay in stays if stay[2] > stay[1]]
    moments = sorted(
        [(start, 1, run) for run, start, _ in lasting] + [(end, 0, run) for run, _, end in lasting]
    )
    here: List[int] = []
    before = 0.0
    for moment, comes, run in moments:
        if here and moment > before:
            part = (moment - before) / len(here)
            for other in here:
                taken[other] += part
        before = moment
        if comes:
            here.append(run)
        else:
            here.remove(run)
    return taken


def busy_periods(stays: Iterable[Stay]) -> Iterator[List[Stay]]:
    """Stays of one GPU, in order of their start, cut where nobody was there."""
    period: List[Stay] = []
    last_end = float("-inf")
    for stay in stays:
        if period and stay[1] >= last_end:
            yield period
            period, last_end = [], float("-inf")
        period.append(stay)
        last_end = max(last_end, stay[2])
    if period:
        yield period
