"""Slurm's ways to place jobs: whole GPUs, and shards by each placement of a site."""

from __future__ import annotations

from typing import Dict

from slurm_gpumem.simulation.types import Policy, Timing

SLURM_TIMING = Timing(recovery_s=121.0)
"""Slurm holds a requeued job back until its credential has expired (cred_expire, 120 s)."""
SLURM_POLICIES: Dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("slurm", "first", granted=True, whole=True, backfill=True),
        Policy("slurm-pack", "first", granted=True, backfill=True),
        Policy("slurm-spread", "spread", granted=True, backfill=True),
        Policy("slurm-level", "worst", granted=True, backfill=True),
    )
}
