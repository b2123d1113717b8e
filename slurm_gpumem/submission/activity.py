"""A job's activity in a request: predict it, weigh it against the accepted slowdown, and say so."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.config.load import SharingPolicy
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob, Utilization
from slurm_gpumem.summaries.types import ModelSummary


class Activity(NamedTuple):
    """The share of a GPU that a job's activity takes under an accepted slowdown."""

    share: float
    limit: float
    """The slowdown that counts for this job ..."""
    by_job: bool
    """... and whether the job chose it itself."""
    because: str
    """"pressure": it slows others down so much; "tolerance": others slow it down so much."""


def estimated(name: str, summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    """The named estimator's answer with the job's utilization."""
    from slurm_gpumem.utilization.predict import with_utilization

    return with_utilization(registry.run(name, summary, job, gpu), gpu, summary)


def weigh_activity(
    estimates: Sequence[Optional[Estimate]],
    own: Optional[float],
    partitions: Sequence[str],
    policy: SharingPolicy,
) -> Tuple[List[Optional[Activity]], List[str]]:
    """What each estimate's activity takes, None where it does not count; and warnings."""
    none: List[Optional[Activity]] = [None] * len(estimates)
    site = policy.slowdown_in(partitions)
    if own is not None and policy.ignores_utilization(partitions):
        return none, ["max-slowdown has no effect: the site keeps activity out (sharing.utilization)"]
    limit = site if own is None else own
    if limit is None:
        return none, []
    unknown = any(estimate is not None and estimate.utilization is None for estimate in estimates)
    said = ["its activity is not known, so only memory decides its share"] if unknown else []
    from slurm_gpumem.errors import ConfigError

    try:
        return [_weighed(e.utilization if e else None, limit, own, site, policy) for e in estimates], said
    except ConfigError as error:
        return none, [f"only memory decides the share: {error}"]


def _weighed(
    utilization: Optional[Utilization],
    limit: float,
    own: Optional[float],
    site: Optional[float],
    policy: SharingPolicy,
) -> Optional[Activity]:
    if utilization is None:
        return None
    from slurm_gpumem.utilization.budget import activity_budget

    found = activity_budget(utilization, limit, limit if site is None else site, policy.node_mode)
    return Activity(found.share, limit, own is not None, found.because)


def utilization_lines(utilization: Optional[Utilization]) -> List[str]:
    """How hard the job will drive the GPU, for --explain."""
    if utilization is None:
        return []
    low, high = utilization.intervals["sm_active"]
    shortest, longest = utilization.intervals["step_seconds"]
    bound = "the CPU's launches" if utilization.launch_bound else "the GPU"
    return [
        f"alone on the GPU: SM activity {utilization.sm_active:.0f} % ({low:.0f} to {high:.0f}), "
        f"occupancy {utilization.sm_occupancy:.0f} %, memory {utilization.dram_active:.0f} % busy",
        f"                  step {_time(utilization.step_seconds)} ({_time(shortest)} to {_time(longest)}), "
        f"bound by {bound}",
        *(f"                  {warning}" for warning in utilization.warnings),
    ]


def share_lines(activity: Optional[Activity], memory_units: int, activity_units: int, unit: str) -> List[str]:
    """Which of memory and activity decided the share, and what the other would have asked for."""
    if activity is None:
        return ["share: by memory; no slowdown limit counts for this job (sharing.max_slowdown)"]
    whose = "the job's own" if activity.by_job else "the site's"
    why = "it takes that much" if activity.because == "pressure" else "it suffers from more beside it"
    larger, smaller = ("activity", "memory") if activity_units > memory_units else ("memory", "activity")
    return [
        f"share: by {larger}, {max(memory_units, activity_units)} {unit}; {smaller} alone: "
        f"{min(memory_units, activity_units)} {unit}",
        f"       {activity.share * 100:.0f} % of the GPU keeps slowdowns within {activity.limit:g} "
        f"({whose} limit): {why}",
    ]


def limit_lines(utilization: Optional[Utilization], own: Optional[float], policy: SharingPolicy) -> List[str]:
    """What an accepted slowdown makes of the job's activity, where no partition is known yet."""
    site = policy.slowdown_in([""])
    limit = site if own is None else own
    if utilization is None or limit is None:
        return []
    activity = _weighed(utilization, limit, own, site, policy)
    if activity is None:
        return []
    return [
        f"within a slowdown of {limit:g} its activity takes {activity.share * 100:.0f} % of the GPU; "
        "the share is the larger of this and memory's"
    ]


def utilization_json(utilization: Optional[Utilization]) -> Optional[Dict[str, Any]]:
    """A prediction for --json."""
    if utilization is None:
        return None
    return {
        "sm_active": round(utilization.sm_active, 1),
        "sm_occupancy": round(utilization.sm_occupancy, 1),
        "dram_active": round(utilization.dram_active, 1),
        "step_seconds": float(f"{utilization.step_seconds:.4g}"),
        "intervals": {
            name: [float(f"{low:.4g}"), float(f"{high:.4g}")]
            for name, (low, high) in utilization.intervals.items()
        },
        "coverage": utilization.coverage,
        "launch_bound": utilization.launch_bound,
        "source": utilization.source,
        "measured": utilization.measured,
        "warnings": list(utilization.warnings),
    }


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
