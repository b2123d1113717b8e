"""Quantiles of weighted, partly censored values, and bounds that hold for the values to come."""

from __future__ import annotations

from math import ceil, inf
from typing import Sequence, Tuple

Point = Tuple[float, float, bool]
"""Value, weight, censored (it is at least this)."""


def conformal(points: Sequence[Point], coverage: float) -> float:
    """The quantile that holds `coverage` of the next ones too.

    Runs of one model err together, so it is the models that count. The largest of m holds
    m / (m + 1) of what comes; where that is too little, a normal tail is put behind it.
    """
    count = max(2, round(sum(weight for _, weight, _ in points)))
    level = ceil((count + 1) * coverage) / count
    found = quantile(points, min(level, 1.0))
    if found == inf:
        # The largest values are censored: nobody knows how large they are, so the widest bound is taken.
        found = max(max(value for value, _, _ in points) * 1.5, 1.0)
    if level > 1.0:
        found = max(found, _normal_bound(points, count, coverage))
    return max(found, 0.1)


def _normal_bound(points: Sequence[Point], count: int, coverage: float) -> float:
    """Where `coverage` of a normal distribution with these points' mean and spread lies."""
    from statistics import NormalDist

    total = sum(weight for _, weight, _ in points)
    mean = sum(value * weight for value, weight, _ in points) / total
    spread: float = (sum(weight * (value - mean) ** 2 for value, weight, _ in points) / total) ** 0.5
    z = NormalDist().inv_cdf(coverage)
    # Student's quantile for `count` points, by the first term of its expansion, and the mean's own error.
    student = z + (z**3 + z) / (4 * (count - 1))
    wider: float = ((count + 1) / (count - 1)) ** 0.5
    return mean + student * spread * wider


def middle(points: Sequence[Point]) -> float:
    """The median; where most are censored, a tenth above the median of what they took at least."""
    found = quantile(points, 0.5)
    if found == inf:
        found = 0.1 + quantile([(value, weight, False) for value, weight, _ in points], 0.5)
    return found


def quantile(points: Sequence[Point], level: float) -> float:
    """Kaplan and Meier's quantile of weighted (value, weight, censored); inf where only censored ones are."""
    at_risk = sum(weight for _, weight, _ in points)
    beyond = 1.0
    for value, weight, censored in sorted(points, key=lambda point: (point[0], point[2])):
        if not censored:
            # Rounding may leave less at risk than the last one weighs.
            beyond *= max(0.0, 1 - weight / max(at_risk, weight))
            if 1 - beyond >= level - 1e-9:
                return value
        at_risk -= weight
    return inf


def median(values: Sequence[float]) -> float:
    """The median; 0 of nothing."""
    ordered = sorted(values)
    half = len(ordered) // 2
    if not ordered:
        return 0.0
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
