"""Several setups on one trace, each over several seeds: the table of `python -m lab.simulate`."""

from __future__ import annotations

from math import exp
from random import Random
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from lab.simulate.figures import Figures, Spread, as_json, figures, spread
from slurm_gpumem.simulation.engine import simulate
from slurm_gpumem.simulation.types import Setup, SimJob

# The same trace as it might have been: what no two real runs have in common, drawn for a seed.

WORK_NOISE = 0.05
"""Standard deviation of the logarithm of a job's time alone."""
ARRIVAL_NOISE_S = 30.0
STARTUP_NOISE = (0.5, 1.5)


def varied(jobs: Sequence[SimJob], seed: int) -> List[SimJob]:
    """Times alone a few percent off, arrivals up to half a minute later, start-up half as long or longer."""
    if seed == 0:
        return list(jobs)
    rng = Random(seed)
    return [
        job._replace(
            arrival=job.arrival + rng.uniform(0.0, ARRIVAL_NOISE_S),
            work=job.work * exp(rng.gauss(0.0, WORK_NOISE)),
            startup_s=job.startup_s * rng.uniform(*STARTUP_NOISE),
        )
        for job in jobs
    ]


SCHEMA = "gpumem-simulation/1"
Column = Tuple[str, str, float]
"""Title, name of the figure (a time's mean after a dot), divisor."""
COLUMNS: Tuple[Column, ...] = (
    ("makespan h", "makespan_s", 3600.0),
    ("wait min", "waiting.mean", 60.0),
    ("P95", "waiting.p95", 60.0),
    ("run min", "execution.mean", 60.0),
    ("total min", "completion.mean", 60.0),
    ("slowdown", "slowdown", 1.0),
    ("OOM", "crashes", 1.0),
    ("MJ", "energy_mj", 1.0),
    ("GPU h", "gpu_hours", 1.0),
    ("memory %", "memory", 0.01),
    ("SM %", "active", 0.01),
)
LOST: Column = ("lost GPU h", "lost_gpu_hours", 1.0)
"""Shown where jobs make room for others."""


class Compared(NamedTuple):
    """One setup and what its seeds came to."""

    label: str
    setup: Setup
    runs: Tuple[Figures, ...]


def compare(jobs: Sequence[SimJob], setups: Sequence[Tuple[str, Setup]], seeds: int) -> List[Compared]:
    """Run every setup on the same variations of the trace; seed 0 is the trace as it is."""
    return [
        Compared(label, setup, tuple(figures(simulate(varied(jobs, seed), setup)) for seed in range(seeds)))
        for label, setup in setups
    ]


def values_of(row: Compared, figure: str) -> List[float]:
    """One figure of every seed."""
    name, _, part = figure.partition(".")
    found = [getattr(run, name) for run in row.runs]
    return [float(getattr(value, part) if part else value) for value in found]


def cells(row: Compared) -> List[str]:
    """One line of the table: means over the seeds."""
    return [_number(found.mean) for found in _spreads(row, COLUMNS)]


def table(rows: Sequence[Compared]) -> List[str]:
    """Lines for a terminal; over several seeds the lowest and highest stand in a line below."""
    lose = any(row.setup.turns.slot_s or row.setup.turns.preempt for row in rows)
    columns = (*COLUMNS, LOST) if lose else COLUMNS
    lines = [["policy", *(title for title, _, _ in columns)]]
    for row in rows:
        found = _spreads(row, columns)
        lines.append([row.label, *(_number(one.mean) for one in found)])
        if len(row.runs) > 1:
            lines.append(["", *(f"{_number(one.low)}–{_number(one.high)}" for one in found)])
    return _aligned(lines)


def users_table(rows: Sequence[Compared]) -> List[str]:
    """How each user's jobs fared in the trace as it is, in minutes."""
    lines = [["policy", "user", "jobs", "wait min", "longest", "total min"]]
    for row in rows:
        for user in row.runs[0].users:
            times = (user.waiting, user.longest, user.completion)
            lines.append([row.label, user.user, str(user.jobs), *(_number(time / 60) for time in times)])
    return _aligned(lines)


def _aligned(lines: Sequence[Sequence[str]]) -> List[str]:
    widths = [max(8 if place else 0, *(len(line[place]) for line in lines)) for place in range(len(lines[0]))]
    return [
        " ".join(
            f"{cell:>{width}}" if place else f"{cell:<{width}}"
            for place, (cell, width) in enumerate(zip(line, widths))
        )
        for line in lines
    ]


def _spreads(row: Compared, columns: Sequence[Column]) -> List[Spread]:
    return [spread([value / divisor for value in values_of(row, name)]) for _, name, divisor in columns]


def comparison_json(rows: Sequence[Compared]) -> Dict[str, Any]:
    """The same for a machine, every seed by itself."""
    return {
        "schema": SCHEMA,
        "rows": [
            {
                "label": row.label,
                "policy": row.setup.policy.name,
                "estimator": row.setup.estimator,
                "mode": row.setup.mode,
                "gpus": row.setup.fleet.gpus,
                "runs": [as_json(run) for run in row.runs],
            }
            for row in rows
        ],
    }


def _number(value: float) -> str:
    if value != value:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
