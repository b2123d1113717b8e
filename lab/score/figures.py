"""Answers beside what was measured, and the figures of a group of them that every table is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Sequence

from slurm_gpumem.units import ceil_div


class Answered:
    """What was measured and what was said of it, in MiB."""

    real_mib: int
    peak_mib: int
    request_mib: int
    warned: bool
    """Whether the answer came with a warning."""

    @property
    def error(self) -> float:
        """(estimate - real) / real."""
        return (self.peak_mib - self.real_mib) / self.real_mib

    @property
    def below(self) -> bool:
        """Whether the request is not enough."""
        return self.request_mib < self.real_mib

    @property
    def over_reservation(self) -> float:
        """(request - real) / real."""
        return (self.request_mib - self.real_mib) / self.real_mib


@dataclass(frozen=True)
class Answer(Answered):
    """The same and nothing more."""

    real_mib: int
    peak_mib: int
    request_mib: int
    warned: bool = False


@dataclass(frozen=True)
class Figures:
    """One line of the accuracy table; shares and errors are fractions."""

    count: int
    median_error: float
    p90_error: float
    under_peak: float
    """Share of runs whose real memory is above the estimate."""
    under_request: float
    """Share of runs whose real memory is above the request."""
    under_unwarned: float
    """Share of runs whose real memory is above the request, and no warning was given."""
    over_reservation: float
    """Median of (request - real) / real."""
    capacity: float
    """Sum of the requests as a multiple of the sum of the needs: what Slurm counts."""
    over_half: float
    """Share of requests above 1.5 times the need."""
    over_twice: float
    """Share of requests above twice the need."""
    shards_exact: float
    shards_within_one: float
    shards_too_few: float


def figures(scores: Sequence[Answered], shard_mib: int = 1024) -> Figures:
    """The table's numbers of a group of scores, which must not be empty."""
    errors = sorted(abs(s.error) for s in scores)
    surplus = [ceil_div(s.request_mib, shard_mib) - ceil_div(s.real_mib, shard_mib) for s in scores]
    return Figures(
        count=len(scores),
        median_error=quantile(errors, 0.5),
        p90_error=quantile(errors, 0.9),
        under_peak=share(s.peak_mib < s.real_mib for s in scores),
        under_request=share(s.below for s in scores),
        under_unwarned=share(s.below and not s.warned for s in scores),
        over_reservation=quantile(sorted(s.over_reservation for s in scores), 0.5),
        capacity=sum(s.request_mib for s in scores) / sum(s.real_mib for s in scores),
        over_half=share(s.request_mib > 1.5 * s.real_mib for s in scores),
        over_twice=share(s.request_mib > 2 * s.real_mib for s in scores),
        shards_exact=share(n == 0 for n in surplus),
        shards_within_one=share(abs(n) <= 1 for n in surplus),
        shards_too_few=share(n < 0 for n in surplus),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the sorted values lie, interpolated between neighbours."""
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def share(flags: Iterable[bool]) -> float:
    """How many of them are true, as a part of all."""
    values = list(flags)
    return sum(values) / len(values)
