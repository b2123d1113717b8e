"""What `sharing.max_slowdown` buys: `python -m lab.score.knob --svg lab/docs/sharing.svg`.

For some values of the knob: the measured sets whose shares fit one GPU, with the speeds that were measured;
and GPUs filled with measured jobs in random order as Slurm would, with the speeds that are predicted.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import List, Mapping, NamedTuple, Optional, Sequence

from lab.shared_speeds import filled_gpus, load_from, speeds
from lab.utilization_runs import SharedSet, load_sets
from slurm_gpumem.svg import Frame, document, text
from slurm_gpumem.utilization.budget import budget, interpolated
from slurm_gpumem.utilization.interference import Interference, JobLoad, packaged

KNOBS = (1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2.0, 3.0)
_FILLS = 400
_RED = "#c0392b"
_BELOW = "speed of the slowest job (1 = as alone)"
_BESIDE = "work of the GPU (jobs alone = 1 each)"
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


def svg(found: Sequence[Point], sets: Sequence[SharedSet], mode: str = "mps") -> str:
    """The plot: work against the slowest job's speed, every measured set and the knob's line."""
    dots = [(min(one.speeds), sum(one.speeds), len(one.jobs)) for one in sets if one.mode == mode]
    top = max([work for _, work, _ in dots] + [p.work for p in found] + [2.0]) * 1.08
    frame = Frame(640, 400, 64, 24, 20, 52, (0.0, 1.05), (0.0, top))
    parts = _frame(frame)
    for speed, work, count in dots:
        shade = max(0, 190 - 28 * (count - 2))
        place = f'cx="{frame.x(min(speed, 1.05)):.1f}" cy="{frame.y(work):.1f}"'
        parts.append(
            f'<circle {place} r="3" fill="rgb({shade},{shade},{shade})"><title>{count} jobs</title></circle>'
        )
    line = " ".join(f"{frame.x(p.worst):.1f},{frame.y(p.work):.1f}" for p in found)
    parts.append(f'<polyline points="{line}" fill="none" stroke="{_RED}" stroke-width="2"/>')
    for p in found:
        x, y = frame.x(p.worst), frame.y(p.work)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{_RED}"/>')
        parts.append(text(x + 8, y - 4, f"{p.knob:g}", "ink"))
    return document(frame.width, frame.height, f"{_BESIDE} against the {_BELOW}", [*parts, *_legend(frame)])


def _frame(frame: Frame) -> List[str]:
    """Axes with their numbers and titles."""
    parts = [frame.column(tick, f"{tick:g}") for tick in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]
    parts += [frame.level(number, str(number)) for number in range(int(frame.up[1]) + 1)]
    middle = (frame.top + frame.base) / 2
    turned = f' transform="rotate(-90 18 {middle:.1f})"'
    parts.append(text((frame.left + frame.end) / 2, frame.base + 40, _BELOW, "ink", anchor="middle"))
    parts.append(text(18, middle, _BESIDE, "ink", anchor="middle", more=turned))
    return parts


def _legend(frame: Frame) -> List[str]:
    x, y = frame.left + 12, frame.height - 96
    return [
        f'<circle cx="{x}" cy="{y - 4}" r="3" fill="#888"/>',
        text(x + 10, y, "a measured set of jobs under MPS; darker: more jobs"),
        f'<circle cx="{x}" cy="{y + 14}" r="4" fill="{_RED}"/>',
        text(x + 10, y + 18, "GPUs filled under max_slowdown, by its value (predicted)"),
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def main(argv: Optional[List[str]] = None) -> int:
    """Print the table; draw the plot where a file is named."""
    parser = argparse.ArgumentParser(prog="python -m lab.score.knob", description=__doc__)
    parser.add_argument("--svg", type=Path, help="file to draw into")
    args = parser.parse_args(argv)
    sets = load_sets()
    found = points(sets, packaged())
    print("\n".join(table_lines(found)))
    if args.svg:
        args.svg.write_text(svg(found, sets))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
