"""`gpumem simulate --html`: the table, and for each policy what every GPU did over time."""

from __future__ import annotations

from typing import Dict, List, Sequence, Tuple

from slurm_gpumem import __version__
from slurm_gpumem.report.html.render import asset, hashed, render
from slurm_gpumem.simulation.compare import COLUMNS, Compared, cells
from slurm_gpumem.simulation.engine import Outcome
from slurm_gpumem.svg import LIGHT_AND_DARK, Frame, document, line, outline, text

MOST_GPUS = 16
_WIDTH, _LANE, _TOP, _BOTTOM = 960, 48, 10, 34
_MEMORY, _ACTIVE = "#2f7ebc", "#d5643c"
_HOUR = 3600.0
Steps = List[Tuple[float, int, float]]
"""(time, MiB, SM activity) from then on."""


def simulation_page(title: str, rows: Sequence[Tuple[Compared, Outcome]]) -> str:
    """The whole page; all drawings have the same scale of time."""
    from markupsafe import Markup

    style = asset("why.css")
    longest = max(outcome.span for _, outcome in rows) or 1.0
    return render(
        "simulation.html",
        policy=f"default-src 'none'; style-src {hashed(style)} {hashed(LIGHT_AND_DARK)}; base-uri 'none'",
        style=style,
        title=title,
        heads=[head for head, _, _ in COLUMNS],
        rows=[
            {
                "label": row.label,
                "cells": cells(row),
                # Ours, and its words are escaped already.
                "drawing": Markup(lanes(outcome, longest)),
                "left_out": max(0, outcome.setup.fleet.gpus - MOST_GPUS),
            }
            for row, outcome in rows
        ],
        version=__version__,
    )


def lanes(outcome: Outcome, longest: float) -> str:
    """One lane for each GPU."""
    gpus = min(MOST_GPUS, outcome.setup.fleet.gpus)
    height = _TOP + gpus * _LANE + _BOTTOM
    first = outcome.jobs[0].arrival if outcome.jobs else 0.0
    hours = longest / _HOUR
    whole = Frame(_WIDTH, height, 60, 10, _TOP, _BOTTOM, (0.0, hours), (0.0, 1.0))
    step = max(1, round(hours / 10))
    parts = [whole.column(hour, f"{hour} h") for hour in range(0, int(hours) + 1, step)]
    by_gpu: Dict[int, Steps] = {}
    for moment, gpu, used, active in outcome.curve:
        if gpu < gpus:
            by_gpu.setdefault(gpu, []).append(((moment - first) / _HOUR, used, active))
    for gpu in range(gpus):
        top = _TOP + gpu * _LANE
        frame = Frame(_WIDTH, top + _LANE, 60, 10, top + 4, 4, (0.0, hours), (0.0, 1.0))
        parts.append(text(52, top + _LANE / 2 + 4, f"GPU {gpu}", anchor="end"))
        parts.append(line((60, frame.base), (frame.end, frame.base), "grid"))
        parts += _lane(by_gpu.get(gpu, []), frame, outcome.setup.fleet.memory_mib)
    return document(_WIDTH, height, "Memory and SM activity of each GPU over time", parts, LIGHT_AND_DARK)


def _lane(steps: Steps, frame: Frame, memory_mib: int) -> List[str]:
    if not steps:
        return []
    area: List[Tuple[float, float]] = [(frame.x(0.0), frame.base)]
    curve: List[str] = []
    used = active = 0.0
    for moment, mib, share in _thinned(steps, frame):
        x = frame.x(moment)
        area += [(x, frame.y(used)), (x, frame.y(mib / memory_mib))]
        curve += [f"{x:.1f} {frame.y(active):.1f}", f"{x:.1f} {frame.y(share):.1f}"]
        used, active = mib / memory_mib, share
    area.append((area[-1][0], frame.base))
    return [
        f'<path d="{outline(area)}" fill="{_MEMORY}" fill-opacity="0.35"/>',
        f'<path d="M{"L".join(curve)}" fill="none" stroke="{_ACTIVE}"/>',
    ]


def _thinned(steps: Steps, frame: Frame) -> Steps:
    """At most one step for each pixel: the last, with the most memory that there was."""
    found: Dict[int, Tuple[float, int, float]] = {}
    for moment, used, active in steps:
        column = round(frame.x(moment))
        before = found.get(column, (0.0, 0, 0.0))
        found[column] = (moment, max(used, before[1]), active)
    if steps:
        found[round(frame.x(steps[-1][0]))] = steps[-1]
    return list(found.values())
