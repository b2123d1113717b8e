"""The policies by name: the documents' own, oracles, Slurm's placements, and ours.

The published manager (RAD-RM, dissertation chapter 6) takes an idle GPU first and shares one only when none
is idle, except under MUG, which fills the GPUs in use. It judges GPUs by what a monitor sees: free memory
now, mean SM activity of the last 90 s.
"""

from __future__ import annotations

from typing import Dict

from slurm_gpumem.config.schema import SHARING
from slurm_gpumem.errors import UnknownNameError, UsageError
from slurm_gpumem.simulation.types import Policy, Timing
from slurm_gpumem.simulation.what_if import SLURM_POLICIES, SLURM_TIMING

WINDOW_S = 90.0
MAX_ACTIVE = 0.8
SLOWDOWN: float = SHARING.default("max_slowdown")
"""That a site accepts unless it says otherwise."""
GB = 1000
"""MiB in what the published manager calls a GB."""
PUBLISHED_TIMING = Timing(decide_s=35.0, share_s=30.0)
"""The published manager waits 35 s before it looks for an idle GPU, 30 s more before it shares one."""


def _published(name: str, order: str, margin_mib: int = 0, max_active: float = 1.0) -> Policy:
    return Policy(
        name,
        order,
        granted=False,
        idle_first=True,
        margin_mib=margin_mib,
        max_active=max_active,
        window_s=WINDOW_S if max_active < 1 or order in ("least", "most") else 0.0,
        recovery_blocks=True,
    )


POLICIES: Dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("exclusive", "first", granted=True, whole=True),
        _published("round-robin", "next"),
        _published("magm", "worst", 5 * GB, MAX_ACTIVE),
        _published("lug", "least", 5 * GB, MAX_ACTIVE),
        _published("mug", "most", 5 * GB, MAX_ACTIVE)._replace(idle_first=False),
        _published("first-fit", "first", 2 * GB, MAX_ACTIVE),
        _published("best-fit", "best", 2 * GB, MAX_ACTIVE),
        _published("worst-fit", "worst", 2 * GB, MAX_ACTIVE),
        _published("least-utilized", "least", 2 * GB, MAX_ACTIVE),
        *SLURM_POLICIES.values(),
        Policy("budget", "first", granted=True, backfill=True, by_activity=SLOWDOWN),
    )
}
WHAT: Dict[str, str] = {
    "exclusive": "each job has its GPUs to itself; first come, first served",
    "round-robin": "one GPU after the other, without a condition",
    "magm": "most available GPU memory: at least 5 GB free and SM activity up to 80 %",
    "lug": "least utilized GPU, same conditions",
    "mug": "most utilized GPU, before any idle one, same conditions",
    "first-fit": "first GPU with the job's memory and 2 GB, SM activity up to 80 %",
    "best-fit": "the one with the least free memory, same conditions",
    "worst-fit": "the one with the most free memory, same conditions",
    "least-utilized": "the least active one, same conditions",
    "slurm": "Slurm without sharing: whole GPUs, priorities, backfill",
    "slurm-pack": "Slurm with shards as it places them by default: the first GPU that fits",
    "slurm-spread": "Slurm with shards and LL_SHARED_GRES: the freest GPU of the first node that fits",
    "slurm-level": "slurm-spread with LLN=YES on the partition: the freest GPU of all nodes",
    "budget": f"slurm-pack with shares that also cover the job's activity (slowdown of at most {SLOWDOWN:g})",
}


def find_policy(name: str) -> Policy:
    """The policy of that name; UnknownNameError where there is none."""
    if name not in POLICIES:
        raise UnknownNameError("policy", name, list(POLICIES))
    return POLICIES[name]


def timing_of(policy: Policy) -> Timing:
    """How long decisions take under it, where nobody says otherwise: those of Slurm at once."""
    return SLURM_TIMING if policy.backfill else Timing()


def with_slowdown(policy: Policy, slowdown: float) -> Policy:
    """The same policy with shares that cover activity up to this slowdown."""
    if policy.whole or not policy.granted:
        raise UsageError(f"the policy {policy.name} gives out no shares: --max-slowdown belongs to budget")
    return policy._replace(by_activity=slowdown)
