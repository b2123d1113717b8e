"""The text of a log against the measurement: what may be believed of it."""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence

from slurm_gpumem.formats.comment import HOST, NEIGHBOUR, OOM
from slurm_gpumem.node.records import NEAR
from slurm_gpumem.recovery.patterns import Kind
from slurm_gpumem.recovery.sighting import Sighting

_FAR = 0.5
"""Less than this part of the limit, with what was asked for on top: then memory was not what it lacked."""
_NOTHING = 0.1
"""The same where the text does not say what was asked for."""
_ENOUGH_SAMPLES = 5
"""Fewer looks at the GPU may have missed the peak."""


class Measured(NamedTuple):
    """The node's measurement of a run, as far as it is known when the run ends."""

    peak_mib: Optional[float] = None
    limit_mib: Optional[float] = None
    """What its share allows, or the GPU has."""
    samples: int = 0
    fresh: bool = False
    """Whether it was written just now: an older one can say that much was used, not that little was."""

    @property
    def part(self) -> Optional[float]:
        """The peak as a part of the limit, when both are known."""
        if self.peak_mib is None or not self.limit_mib:
            return None
        return self.peak_mib / self.limit_mib

    @property
    def certain(self) -> bool:
        """Whether a low peak means that little was used."""
        return self.part is not None and self.fresh and self.samples >= _ENOUGH_SAMPLES


def weigh(seen: Sighting, measured: Measured, company: Sequence[int] = ()) -> Optional[str]:
    """The verdict on a run that fails with this: "oom", "neighbour", "host", or None for another reason.

    `company` are the user's other jobs that the same GPU fault has hit.
    """
    if seen.kind is Kind.HOST:
        return HOST
    if seen.kind is Kind.NEIGHBOUR or (seen.kind is Kind.FAULT and company):
        return NEIGHBOUR
    if seen.kind is Kind.MAYBE:
        near = measured.part is not None and measured.part >= NEAR
        return OOM if near else None
    if seen.kind is not Kind.OOM:
        return None
    if not measured.certain or measured.part is None or measured.limit_mib is None:
        return OOM
    if seen.need_mib is None:
        return OOM if measured.part >= _NOTHING else None
    need = (measured.peak_mib or 0) + seen.need_mib
    return OOM if need >= _FAR * measured.limit_mib else None
