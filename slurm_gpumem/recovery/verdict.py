"""The text of a log checked against the measurement: which of it may be believed."""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence

from slurm_gpumem.formats.verdicts import NEIGHBOUR, OOM, VERDICTS
from slurm_gpumem.node.records import NEAR
from slurm_gpumem.recovery.log_verdict import LogVerdict
from slurm_gpumem.recovery.patterns import Kind

_FAR = 0.5
"""Less than this part of the limit, including what was asked for last: then memory was not what it lacked."""
_NOTHING = 0.1
"""The same where the text does not say what was asked for."""
_ENOUGH_SAMPLES = 5
"""With fewer samples the peak may have been missed."""


class Measured(NamedTuple):
    """The node's measurement of a run, as far as it is known when the run ends."""

    peak_mib: Optional[float] = None
    limit_mib: Optional[float] = None
    """What its share allows, or the GPU has."""
    samples: int = 0
    fresh: bool = False
    """Whether it was written just now: an older one can say that much was used, not that little was."""
    overran: bool = False
    """Whether the node ended its processes, because it took more than its share while sharing."""
    crowded: bool = False
    """Whether another job took more than its share beside it."""

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


def verdict_on(log: LogVerdict, measured: Measured, hit_too: Sequence[int] = ()) -> Optional[str]:
    """Why a run that fails with this log ended: the name of a verdict, None for a reason that has none.

    `hit_too` are the user's other jobs that the same GPU fault has hit.
    """
    if measured.overran:
        return OOM
    if log.kind is Kind.FAULT:
        return NEIGHBOUR if hit_too else None
    if log.kind is Kind.MAYBE:
        near = measured.part is not None and measured.part >= NEAR
        return OOM if near else None
    if log.kind is Kind.OOM and measured.crowded and not _was_at_its_limit(log, measured):
        return NEIGHBOUR
    if log.kind is Kind.OOM:
        return OOM if _may_have_run_out(log, measured) else None
    return log.kind.value if log.kind and log.kind.value in VERDICTS else None


def _was_at_its_limit(log: LogVerdict, measured: Measured) -> bool:
    """Whether its own share was too small, whoever took what beside it."""
    if log.need_mib is None:
        return measured.part is not None and measured.part >= NEAR
    return measured.limit_mib is not None and max(measured.peak_mib or 0, log.need_mib) > measured.limit_mib


def _may_have_run_out(log: LogVerdict, measured: Measured) -> bool:
    """Whether the measurement allows that memory ran out: anybody can print such a line."""
    if not measured.certain or measured.part is None or measured.limit_mib is None:
        return True
    if log.need_mib is None:
        return measured.part >= _NOTHING
    return (measured.peak_mib or 0) + log.need_mib >= _FAR * measured.limit_mib
