"""What chapter 6 leaves open: other bounds on SM activity, other margins, and estimates that are wrong by
a factor."""

from __future__ import annotations

from typing import Callable, List, Mapping, Sequence, Tuple

from slurm_gpumem.lab.chapter6.published import MPS
from slurm_gpumem.simulation.engine import simulate
from slurm_gpumem.simulation.figures import Figures, figures
from slurm_gpumem.simulation.fleet_text import parse_fleet
from slurm_gpumem.simulation.policies import GB, POLICIES, PUBLISHED_TIMING, timing_of, with_conditions
from slurm_gpumem.simulation.types import Policy, Setup, SimJob
from slurm_gpumem.simulation.vary import varied

BOUNDS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 1.0)
MARGINS_GB = (0, 1, 2, 5, 8, 12)
FACTORS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)
Traces = Mapping[int, Sequence[SimJob]]


def sweeps(traces: Traces, seeds: int) -> List[str]:
    """All three as lines of text."""
    magm = POLICIES["magm"]

    def bound(value: float) -> Policy:
        return with_conditions(magm, max_active=value, margin_mib=5 * GB)

    def margin(value: float) -> Policy:
        return with_conditions(magm, max_active=0.8, margin_mib=int(value) * GB)

    lines = _sweep("MAGM without estimates, 5 GB, by bound on SMACT", BOUNDS, bound, traces, seeds)
    lines += _sweep("MAGM without estimates, SMACT 80 %, by margin in GB", MARGINS_GB, margin, traces, seeds)
    for name in ("magm", "slurm-pack"):
        policy = POLICIES[name]
        if not policy.granted:
            policy = with_conditions(magm, max_active=0.8, margin_mib=0)
        title = f"{name} with the real memory times a factor (misestimation, section 6.4.3)"
        lines += ["", title, _HEADER]
        for factor in FACTORS:
            wrong = {
                tasks: [job._replace(estimates={"text": max(1, int(job.peak_mib * factor))}) for job in jobs]
                for tasks, jobs in traces.items()
            }
            lines.append(_line(f"× {factor:g}", policy, "text", wrong, seeds))
    return lines


_HEADER = f"{'':<8} 90 tasks: total h  wait min  slowdown  OOM   60 tasks: total h  wait min  slowdown  OOM"


def _sweep(
    title: str, values: Sequence[float], policy: Callable[[float], Policy], traces: Traces, seeds: int
) -> List[str]:
    return ["", title, _HEADER, *(_line(f"{v:g}", policy(v), "none", traces, seeds) for v in values)]


def _line(label: str, policy: Policy, estimator: str, traces: Traces, seeds: int) -> str:
    timing = timing_of(policy) if policy.backfill else PUBLISHED_TIMING
    setup = Setup(parse_fleet("4xa100-40gb"), policy, estimator, MPS, timing)
    parts: List[Tuple[float, float, float, float]] = []
    for tasks in (90, 60):
        runs = [figures(simulate(varied(traces[tasks], seed), setup)) for seed in range(seeds)]
        parts.append(_means(runs))
    cells = [f"{p[0]:>17.2f}  {p[1]:>8.0f}  {p[2]:>8.2f}  {p[3]:>3.1f}" for p in parts]
    return f"{label:<8} {cells[0]}   {cells[1]}"


def _means(runs: Sequence[Figures]) -> Tuple[float, float, float, float]:
    count = len(runs)
    return (
        sum(run.makespan_s for run in runs) / 3600 / count,
        sum(run.waiting.mean for run in runs) / 60 / count,
        sum(run.slowdown for run in runs) / count,
        sum(run.crashes for run in runs) / count,
    )
