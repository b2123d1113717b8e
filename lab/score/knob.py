"""What `sharing.max_slowdown` buys: `python -m lab.score.knob`.

For some values of the knob: the measured sets whose shares fit one GPU, with the speeds that were measured;
and GPUs filled with measured jobs in random order as Slurm would, with the speeds that are predicted.
"""

from __future__ import annotations

import random
from typing import List, Mapping, NamedTuple, Sequence

from lab.command import print_lines
from lab.shared_speeds import filled_gpus, load_from, speeds
from lab.utilization_runs import SharedSet, load_sets
from slurm_gpumem.utilization.budget import budget, interpolated
from slurm_gpumem.utilization.interference import Interference, JobLoad, packaged

KNOBS = (1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2.0, 3.0)
_FILLS = 400
_LOW = 0.05
"""The share of GPUs that are worse than the "nearly always" of the table."""


class Point(NamedTuple):
    """One value of the knob."""

    knob: float
    sets: int
    """Measured sets that fit."""
    kept: float
    """Share of them whose slowest job kept within the knob ..."""
    shortfall: float
    """... and by how much the others missed it on average."""
    measured_speed: float
    """Mean over them of the slowest job's speed."""
    measured_work: float
    """Mean over them of the sum of speeds: jobs' worth of work."""
    jobs: float
    """Jobs on a GPU that is filled, on average."""
    worst: float
    """Predicted speed of the slowest, on average over GPUs with more than one job ..."""
    low: float
    """... and on all but one GPU in twenty."""
    work: float
    """Jobs' worth of work a GPU does, predicted."""


def points(sets: Sequence[SharedSet], model: Interference, mode: str = "mps") -> List[Point]:
    """All values of the knob."""
    known = model.modes[mode]
    chosen = [one for one in sets if one.mode == mode]
    jobs = list({job: load_from(solo) for one in chosen for job, solo in zip(one.jobs, one.solo)}.values())
    return [_point(knob, chosen, jobs, interpolated(model.scales[mode], knob), known) for knob in KNOBS]


def _point(
    knob: float, sets: Sequence[SharedSet], jobs: Sequence[JobLoad], total: float, known: Mapping[str, float]
) -> Point:
    fitting = [
        one
        for one in sets
        if sum(budget(load_from(solo), knob, total, known).share for solo in one.solo) <= 1 + 1e-9
    ]
    missing = [1 / knob - min(one.speeds) for one in fitting if min(one.speeds) < 1 / knob]
    filled = _filled(knob, jobs, total, known)
    made = [speeds(gpu, known) for gpu in filled]
    worst = sorted(min(found) for found in made if len(found) > 1) or [1.0]
    return Point(
        knob,
        len(fitting),
        1 - len(missing) / len(fitting) if fitting else 1.0,
        sum(missing) / len(missing) if missing else 0.0,
        _mean([min(one.speeds) for one in fitting]),
        _mean([sum(one.speeds) for one in fitting]),
        _mean([float(len(gpu)) for gpu in filled]),
        _mean(worst),
        worst[int(_LOW * len(worst))],
        _mean([sum(found) for found in made]),
    )


def _filled(
    knob: float, jobs: Sequence[JobLoad], total: float, known: Mapping[str, float]
) -> List[List[JobLoad]]:
    shares = [(job, budget(job, knob, total, known).share) for job in jobs]
    return list(filled_gpus(shares, _FILLS, random.Random(0)))


def table_lines(found: Sequence[Point]) -> List[str]:
    """The points as text."""
    lines = [
        "              measured sets that fit                  GPUs filled, predicted",
        "max_slowdown  sets  kept   missed by  slowest  work    jobs  slowest  19 of 20  work",
    ]
    for p in found:
        measured = (
            f"{100 * p.kept:>6.0f} %{p.shortfall:>10.2f}{p.measured_speed:>9.2f}{p.measured_work:>6.2f}"
            if p.sets
            else f"{'-':>8}{'-':>10}{'-':>9}{'-':>6}"
        )
        lines.append(
            f"{p.knob:>12g}{p.sets:>6}{measured}{p.jobs:>8.1f}{p.worst:>9.2f}{p.low:>10.2f}{p.work:>6.2f}"
        )
    return lines


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


if __name__ == "__main__":
    raise SystemExit(print_lines(lambda: table_lines(points(load_sets(), packaged()))))
