"""The answer of `gpumem mig-plan` on one screen, and for machines."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

from slurm_gpumem.estimators.mig import profiles_of
from slurm_gpumem.estimators.mig_layouts import Layout, counted
from slurm_gpumem.simulation.gpu_use import ASSUMED, SOURCES
from slurm_gpumem.simulation.mig_plan import (
    AS_IT_IS,
    PLANNED,
    SHARES,
    WAYS,
    WHOLE_GPU,
    MigPlan,
    Plan,
    PlanFigures,
)
from slurm_gpumem.text import clipped, count
from slurm_gpumem.units import format_mib

SCHEMA = "gpumem-mig-plan/1"
_ROWS: Tuple[Tuple[str, Callable[[PlanFigures], float], int], ...] = (
    ("mean wait, hours", lambda figures: figures.waiting_h, 2),
    ("95th percentile, hours", lambda figures: figures.waiting_p95_h, 2),
    ("submission to end, mean hours", lambda figures: figures.completion_h, 2),
    ("slowdown of jobs on one GPU", lambda figures: figures.slowdown, 2),
    ("jobs beyond their time limit", lambda figures: figures.over_limit, 0),
)


def screen(found: MigPlan, sources: Mapping[str, float], max_slowdown: float) -> List[str]:
    """The lines for one pool of GPUs."""
    pool, fleet = found.pool, found.pool.fleet
    lines = [
        f"{fleet.gpus} × {clipped(fleet.name, 24)} in {count(fleet.nodes, 'node')}, "
        f"{count(len(pool.jobs), 'job')}"
        + ("" if pool.counted else " (GPUs as seen from the jobs; --gpus says otherwise)"),
        "",
    ]
    if set(found.plan) == {()}:
        lines += ["Best as they are, whole: no layout gets the jobs to their ends earlier."]
    else:
        lines += ["Best layout found:", *_plan_lines(found.plan, found.gpu)]
        lines += ["", *_asked_lines(found, max_slowdown)]
    lines += ["", *_table(found, max_slowdown)]
    return [*lines, "", *_how_sure(found, sources)]


def _plan_lines(plan: Plan, gpu: str) -> List[str]:
    width = max(len(str(gpus)) for gpus in plan.values())
    lines = []
    for layout, gpus in sorted(plan.items(), key=lambda item: (item[0] != (), -item[1], item[0])):
        number = f"  {gpus:>{width}} {'GPU ' if gpus == 1 else 'GPUs'}"
        lines.append(f"{number} whole" if not layout else f"{number} {_words(layout)}")
        if layout:
            lines.append(f"  {'':>{width}}      nvidia-smi mig -cgi {','.join(layout)} -C")
    return lines


def _words(layout: Layout) -> str:
    return " + ".join(
        name if number == 1 else f"{number} × {name}" for name, number in counted(layout).items()
    )


def _asked_lines(found: MigPlan, max_slowdown: float) -> List[str]:
    figures = found.figures["middle"].get(PLANNED)
    if figures is None:
        return []
    sizes = {profile.name: profile.mib for profile in profiles_of(found.gpu)}
    lines = ["Jobs on one GPU would ask for:"]
    for kind, jobs in figures.asked.items():
        size = "" if kind == WHOLE_GPU else f" ({format_mib(sizes[kind])})"
        name = "a whole GPU" if kind == WHOLE_GPU else kind
        lines.append(f"  {jobs:>7,}  {name}{size}")
    if figures.slow:
        lines.append(
            f"{count(figures.slow, 'job')} fit a smaller profile, which would slow them down more than "
            f"{max_slowdown:g} times."
        )
    return lines


def _table(found: MigPlan, max_slowdown: float) -> List[str]:
    ways = [way for way in WAYS if any(way in figures for figures in found.figures.values())]
    if set(found.plan) == {()}:
        ways = [AS_IT_IS, SHARES]
    titles = {SHARES: f"shares within {max_slowdown:g}"}
    lines = [f"{'':<32} " + " ".join(f"{titles.get(way, way):>20}" for way in ways)]
    for title, value, digits in _ROWS:
        cells = " ".join(f"{_cell(found, way, value, digits):>20}" for way in ways)
        lines.append(f"{title:<32} {cells}")
    return lines


def _cell(found: MigPlan, way: str, value: Callable[[PlanFigures], float], digits: int) -> str:
    known = {name: value(figures[way]) for name, figures in found.figures.items() if way in figures}
    if not known:
        return "-"
    middle = known.get("middle", next(iter(known.values())))
    low, high = (f"{bound:,.{digits}f}" for bound in (min(known.values()), max(known.values())))
    return f"{middle:,.{digits}f}" if low == high else f"{middle:,.{digits}f} ({low}–{high})"


def _how_sure(found: MigPlan, sources: Mapping[str, float]) -> List[str]:
    known = [f"{name} {sources[name]:.0%}" for name in SOURCES if sources.get(name)]
    lines = [
        f"How sure: {count(found.tried, 'plan')} compared on the last {count(found.searched, 'job')}; "
        f"memory of jobs on one GPU from: {', '.join(known) if known else 'none'}.",
        "  Speed on an instance is the GPU's by multiprocessors; context and workspaces are a whole GPU's "
        "(not measured on MIG).",
    ]
    if sources.get(ASSUMED, 0.0) > 0:
        lines.append("  What is assumed is a guess: record gres/gpumem and gres/gpuutil, then ask again.")
    missing = [name for name, figures in found.figures.items() if PLANNED not in figures]
    if missing:
        lines.append(f"  Assumption {', '.join(missing)}: some job would find no place in this layout.")
    return lines


def plan_json(plans: Sequence[MigPlan], sources: Mapping[str, float], left: Sequence[str]) -> Dict[str, Any]:
    """All pools for a machine."""
    return {
        "schema": SCHEMA,
        "sources": dict(sources),
        "pools": [_pool_json(found) for found in plans],
        "left_out": list(left),
    }


def _pool_json(found: MigPlan) -> Dict[str, Any]:
    fleet = found.pool.fleet
    return {
        "gpu": found.gpu,
        "gpus": fleet.gpus,
        "nodes": fleet.nodes,
        "jobs": len(found.pool.jobs),
        "counted": found.pool.counted,
        "plan": [{"gpus": gpus, "instances": list(layout)} for layout, gpus in found.plan.items()],
        "totals": {
            name: {way: {**figures._asdict(), "asked": dict(figures.asked)} for way, figures in ways.items()}
            for name, ways in found.figures.items()
        },
        "tried": found.tried,
        "searched": found.searched,
    }
