"""The share of a job whose memory is given by hand, for plain sbatch: setup works it out for Lua."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from slurm_gpumem.config.load import ANY_SLOWDOWN, SharingPolicy
from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.utilization.budget import share_for
from slurm_gpumem.utilization.interference import load_of, usual_utilization
from slurm_gpumem.utilization.sets import SHARED, WAYS

NEW_SITE_ACTIVITY = 0.5
"""What setup writes for new sites: about the median of the measured jobs."""


def unknown_share(tables: Mapping[str, Mapping[str, Any]], new_limit: Optional[float]) -> Optional[float]:
    """A part of a GPU, None where memory alone counts; `new_limit` is that of a site without gpumem.toml."""
    sharing, node = tables.get("sharing", {}), tables.get("node", {})
    way = SHARED if new_limit else node.get("mps", NodeConfig().mps)
    active = NEW_SITE_ACTIVITY if new_limit else sharing.get("unknown_activity")
    limit = new_limit or sharing.get("max_slowdown", SharingPolicy().max_slowdown)
    if active is None or limit is None or limit >= ANY_SLOWDOWN or way not in WAYS:
        return None
    load = load_of(usual_utilization(float(active), "assumed"))
    return round(share_for(load, float(limit), float(limit), str(way)).share, 4)
