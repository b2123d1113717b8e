"""How much to ask for: the estimate's peak and a margin. A learned bound will take this place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Features:
    """What a bound may look at."""

    format: str
    peak_mib: int
    floor_mib: int
    hidden: bool
    """Some blocks were shown without their inner layers."""
    has_shapes: bool
    complete: bool


def request_mib(features: Features) -> int:
    """MiB to reserve: the peak and a margin that grows with what had to be inferred."""
    margin = 0.10
    if features.hidden or not features.complete:
        margin = 0.25
    if not features.has_shapes:
        margin = 0.50
    return round(features.peak_mib * (1 + margin))
