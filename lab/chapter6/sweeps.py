"""What chapter 6 leaves open: other bounds on SM activity, other margins, tasks that take their memory sooner
or later, and estimates that are wrong by a factor."""

from __future__ import annotations

from typing import Callable, List, Mapping, Sequence

from lab.chapter6.published import MPS, machine
from slurm_gpumem.simulation.engine import simulate
from slurm_gpumem.simulation.figures import Figures, figures, spread
from slurm_gpumem.simulation.policies import GB, POLICIES, PUBLISHED_TIMING, timing_of, with_conditions
from slurm_gpumem.simulation.types import Policy, Setup, SimJob
from slurm_gpumem.simulation.vary import varied

BOUNDS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 1.0)
MARGINS_GB = (0, 1, 2, 5, 8, 12)
STARTUPS_S = (15, 30, 60, 90, 120, 180)
FACTORS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)
Traces = Mapping[int, Sequence[SimJob]]


def sweeps(traces: Traces, seeds: int) -> List[str]:
    """All of them as lines of text."""
    magm = POLICIES["magm"]

    def bound(value: float) -> Policy:
        return with_conditions(magm, max_active=value, margin_mib=5 * GB)

    def margin(value: float) -> Policy:
        return with_conditions(magm, max_active=0.8, margin_mib=int(value) * GB)

    lines = _sweep("MAGM without estimates, 5 GB, by bound on SMACT", BOUNDS, bound, traces, seeds)
    lines += _sweep("MAGM without estimates, SMACT 80 %, by margin in GB", MARGINS_GB, margin, traces, seeds)
    lines += [
        "",
        "MAGM without estimates, SMACT 80 %, 5 GB, by seconds until tasks hold all their memory",
        _HEADER,
    ]
    for seconds in STARTUPS_S:
        late = {
            tasks: [job._replace(startup_s=min(float(seconds), job.work)) for job in jobs]
            for tasks, jobs in traces.items()
        }
        lines.append(_line(f"{seconds}", bound(0.8), "none", late, seeds))
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


_HEADER = "        " + "   ".join(
    f"{tasks} tasks: total h (range)  wait min  slowdown  OOM (range)" for tasks in (90, 60)
)


def _sweep(
    title: str, values: Sequence[float], policy: Callable[[float], Policy], traces: Traces, seeds: int
) -> List[str]:
    return ["", title, _HEADER, *(_line(f"{v:g}", policy(v), "none", traces, seeds) for v in values)]


def _line(label: str, policy: Policy, estimator: str, traces: Traces, seeds: int) -> str:
    timing = timing_of(policy) if policy.backfill else PUBLISHED_TIMING
    setup = Setup(machine(), policy, estimator, MPS, timing)
    cells = [
        _cells([figures(simulate(varied(traces[tasks], seed), setup)) for seed in range(seeds)])
        for tasks in (90, 60)
    ]
    return f"{label:<8} {cells[0]}   {cells[1]}"


def _cells(runs: Sequence[Figures]) -> str:
    total = spread([run.makespan_s / 3600 for run in runs])
    crashes = spread([run.crashes for run in runs])
    wait = spread([run.waiting.mean / 60 for run in runs])
    slowdown = spread([run.slowdown for run in runs])
    hours = f"{total.mean:.2f} ({total.low:.2f}–{total.high:.2f})"
    ooms = f"{crashes.mean:.1f} ({crashes.low:.0f}–{crashes.high:.0f})"
    return f"{hours:>24}  {wait.mean:>8.0f}  {slowdown.mean:>8.2f}  {ooms:>11}"
