"""A job's activity in a request: the share of a GPU that keeps slowdowns within what is accepted."""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.config.load import SharingPolicy
from slurm_gpumem.config.schema import SHARING
from slurm_gpumem.estimators.types import Utilization

_OF_WORST = {"shared": 0.7, "per-user": 0.3, "timeslice": 1.0}
"""How much of the most that it may lose the median job on a full GPU loses, by way of sharing (of the
limits 1.5 to 3.5, `python -m lab.score.mixes`)."""


class Activity(NamedTuple):
    """The share of a GPU that a job's activity takes under an accepted slowdown."""

    share: float
    limit: float
    """The slowdown that counts for this job ..."""
    by_job: bool
    """... and whether the job chose it itself."""
    because: str
    """"pressure": it slows others down that much; "tolerance": others slow it down that much."""
    site: float = 0.0
    """The slowdown that others' shares are for."""
    utilization: Optional[Utilization] = None
    mode: str = ""

    def worst(self, share: float) -> Optional[float]:
        """How many times as long as alone it may take with that share of a GPU, as predicted."""
        return self._worst(self.utilization, share)

    def usual(self, share: float) -> float:
        """What to expect on a full GPU; where its activity is assumed, if that is right."""
        told = self.utilization and self.utilization._replace(source="")
        return 1 + _OF_WORST.get(self.mode, 1.0) * ((self._worst(told, share) or 1.0) - 1)

    def _worst(self, utilization: Optional[Utilization], share: float) -> Optional[float]:
        if utilization is None:
            return None
        from slurm_gpumem.utilization.budget import worst_slowdown

        return worst_slowdown(utilization, share, self.site, self.mode)


def weigh_activity(
    used: Sequence[Optional[Utilization]],
    own: Optional[float],
    partitions: Sequence[str],
    policy: SharingPolicy,
) -> Tuple[List[Optional[Activity]], List[str]]:
    """What the activity on each kind takes, None where it does not count; and warnings."""
    site = policy.slowdown_in(partitions)
    # No warning about the default limit, which neither the job nor the site chose.
    chosen = own is not None or site != SHARING.default("max_slowdown")
    unknown = chosen and None in used
    warnings = ["its activity is not known, so only memory decides its share"] if unknown else []
    from slurm_gpumem.errors import ConfigError

    try:
        found = [activity_of(one, own, site, policy) for one in used]
        if own is not None and site is not None and own > site:
            usual = [activity_of(one, None, site, policy) for one in used]
            known = [one.share for one in found if one]
            if known and known == [one.share for one in usual if one]:
                warnings.append(
                    f"max-slowdown {own:g} asks for no less than the site's {site:g}: its share is what it "
                    "takes from others"
                )
        return found, warnings
    except ConfigError as error:
        return [None] * len(used), [f"only memory decides the share: {error}"]


def activity_of(
    utilization: Optional[Utilization], own: Optional[float], site: Optional[float], policy: SharingPolicy
) -> Optional[Activity]:
    """What a prediction takes under the job's own limit, else the site's; None without either."""
    limit = site if own is None else own
    if utilization is None or limit is None:
        return None
    from slurm_gpumem.utilization.budget import activity_budget

    others = limit if site is None else site
    way = policy.node_mps
    found = activity_budget(utilization, limit, others, way)
    return Activity(found.share, limit, own is not None, found.because, others, utilization, way)
