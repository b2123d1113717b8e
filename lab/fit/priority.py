"""Fit what priorities do among jobs at one MPS server: `python -m lab.fit.priority`.

Reads measured sets (`priorities.jsonl`) and writes the part `priority` of models/fitted/interference.json.
Prints, for each way, how far predicted slowdowns are from the measured ones.
"""

from __future__ import annotations

import json
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any, Dict, FrozenSet, List, Mapping, NamedTuple, Sequence, Tuple

from lab.places import FITTED, SETS
from lab.rows import read_rows
from lab.shared_speeds import load_from, usual_load
from lab.utilization_runs import load_sets
from slurm_gpumem.utilization.budget import budget
from slurm_gpumem.utilization.interference import (
    FILE,
    SIDE,
    JobLoad,
    Prepared,
    Priority,
    by_priority,
    prepare,
)

ROWS = SETS / "priorities.jsonl"
LOW: Mapping[str, FrozenSet[str]] = {
    "low": frozenset(("conv32", "conv256", "text128")),
    "lower": frozenset(("conv32", "conv256", "text128", "text16")),
}
"""By way: the kinds that ran with the lower priority."""
PLAIN = ("plain", "again")
SLOWDOWNS = (1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0)
TOTALS = tuple(0.05 * 1.05**step for step in range(99))


class Measured(NamedTuple):
    """One set: its jobs, "busy" those of lower priority, and how many times as long as alone each took."""

    way: str
    kinds: Sequence[str]
    jobs: Sequence[Prepared]
    slow: Sequence[float]


def measured(path: Path, known: Mapping[str, float]) -> List[Measured]:
    """The sets of a file."""
    rows = list(read_rows(path))
    active = {row["kind"]: row["sm"] for row in rows if row["part"] == "activity"}
    sets = []
    for row in rows:
        if row["part"] == "set" and row["way"] in (*PLAIN, *LOW):
            alone = next(one for one in rows if one["part"] == "alone" and one["way"] == row["way"])
            kinds = row["kinds"]
            loads = [usual_load(active[kind], 1 / alone[kind]) for kind in kinds]
            low = [kind in LOW.get(row["way"], ()) for kind in kinds]
            jobs = [prepare(load, known)._replace(busy=busy) for load, busy in zip(loads, low)]
            sets.append(Measured(row["way"], kinds, jobs, row["slow"]))
    return sets


def error(sets: Sequence[Measured], eased: float, raised: float) -> float:
    """Root mean square of the logarithms of predicted over measured."""
    priority = Priority(eased, raised, ())
    off = [
        log(speed * slow) ** 2
        for one in sets
        for speed, slow in zip(by_priority(one.jobs, priority), one.slow)
    ]
    return float(fmean(off) ** 0.5)


def scale_points(
    jobs: Sequence[JobLoad], known: Mapping[str, float], raised: float
) -> List[Tuple[float, float]]:
    """For some slowdowns the sum of pressures at which these jobs' shares are smallest on average."""

    def mean(slowdown: float, total: float) -> float:
        harder = [raised if job.busy else 1.0 for job in jobs]
        return fmean(budget(job, slowdown, total, known, by).share for job, by in zip(jobs, harder))

    def best(slowdown: float) -> float:
        return min(TOTALS, key=lambda total: mean(slowdown, total))

    return [(slowdown, round(best(slowdown), 4)) for slowdown in SLOWDOWNS]


def main() -> int:
    """Fit, write, and print how good it is."""
    content: Dict[str, Any] = json.loads((FITTED / FILE).read_text())
    known = content["modes"][SIDE]["coefficients"]
    sets = measured(ROWS, known)
    taught = [one for one in sets if one.way in LOW]
    grid = [(a / 20, 1 + b / 20) for a in range(1, 21) for b in range(61)]
    eased, raised = min(grid, key=lambda pair: error(taught, *pair))
    jobs = {key: load_from(solo) for one in load_sets(SETS) for key, solo in zip(one.jobs, one.solo)}
    scale = scale_points(list(jobs.values()), known, raised)
    part = {"eased": eased, "raised": raised, "scale": scale}
    card = content.pop("card")
    content.update(priority=part, card=card)
    (FITTED / FILE).write_text(json.dumps(content, separators=(",", ":")) + "\n")
    print(f"eased {eased:g}, raised {raised:g}")
    for way in (*PLAIN, *LOW):
        chosen = [one for one in sets if one.way == way]
        off = exp(error(chosen, eased, raised)) - 1
        work = fmean(sum(1 / slow for slow in one.slow) for one in chosen)
        light = fmean(s for one in chosen for kind, s in zip(one.kinds, one.slow) if kind == "small")
        print(f"{way:<8}{len(chosen)} sets, off by {100 * off:.0f} %, work {work:.2f}, light {light:.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
