"""How much to ask for: the estimate's peak and a margin. A learned bound will take this place.

The margins are no less than the 90th percentiles of (real - peak) / peak over runs measured on an H200 of the
models whose name has sha1(name) % 3 != 0, rounded up: such a share of those runs stayed within its request.
"""

from __future__ import annotations

from dataclasses import dataclass

SHOWN = 0.18
"""Every layer is in the text: torchinfo with depth=20, torchsummary."""
HIDDEN = 0.25
"""Blocks stand without their inner layers, or the table is cut off."""
SHAPELESS = 1.2
"""No shapes at all: print(model)."""


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
    if not features.has_shapes:
        margin = SHAPELESS
    elif features.hidden or not features.complete:
        margin = HIDDEN
    else:
        margin = SHOWN
    return round(features.peak_mib * (1 + margin))
