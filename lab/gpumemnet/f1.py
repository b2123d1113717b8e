"""How well classes are told apart, as the publication scores it."""

from __future__ import annotations

from typing import Sequence


def f1_score(told: Sequence[int], real: Sequence[int]) -> float:
    """F1 of each class, weighted by how often it is the right one."""
    total = 0.0
    for value in set(real):
        right = sum(a == b == value for a, b in zip(told, real))
        said, wanted = list(told).count(value), list(real).count(value)
        total += wanted * (2 * right / (said + wanted))
    return total / len(real)
