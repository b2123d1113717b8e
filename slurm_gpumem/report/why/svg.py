"""The drawing of `gpumem why`: live memory over the step."""

from __future__ import annotations

from typing import Dict, List, Sequence, Tuple

from slurm_gpumem.estimators.explain.advice import PeakReasons
from slurm_gpumem.estimators.explain.timeline import Timeline
from slurm_gpumem.estimators.job.training_job import describe_estimated
from slurm_gpumem.svg import LIGHT_AND_DARK, Frame, document, key, line, outline, text
from slurm_gpumem.terminal.chart import ticks
from slurm_gpumem.units import MIB, format_mib

_WIDTH, _HEIGHT = 1000, 520
_LEFT, _TOP, _RIGHT, _BOTTOM = 76, 96, 16, 72
_LETTER = 7.2
"""Approximate width of a letter; only used for our own labels."""
# Colours that stay apart for most colour-blind eyes.
COLOURS: Dict[str, str] = {
    "weights": "#0072b2",
    "buffers": "#56b4e9",
    "optimizer": "#e69f00",
    "gradients": "#d55e00",
    "inputs": "#969696",
    "activations": "#009e73",
    "workspace": "#cc79a7",
}
"""By category, in the order in which they are stacked: what stays below, what comes and goes above."""


def _heading(reasons: PeakReasons) -> Tuple[str, str]:
    """The model, and the job with its peak."""
    job = f"{describe_estimated(reasons.summary, reasons.estimate)}, {reasons.gpu.name}"
    peak = f"peak {format_mib(reasons.estimate.peak_mib)} with context and fragmentation"
    return reasons.summary.name or "model", f"{job}: {peak}"


def why_svg(reasons: PeakReasons) -> str:
    """Live memory by category over the step, with phases and the peak marked."""
    timeline = reasons.timeline
    top = max(timeline.peak_bytes / MIB * 1.04, 1.0)
    across = (0.0, float(max(1, len(timeline.points))))
    frame = Frame(_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM, across, (0.0, top))
    title, job = _heading(reasons)
    parts = [text(16, 30, title, "title ink"), text(16, 54, job)]
    parts += [frame.level(value, label) for value, label in ticks(top)]
    parts += _phases(timeline, frame)
    parts += _areas(timeline, frame)
    parts += _peak(timeline, frame)
    parts.append(line((_LEFT, frame.base), (frame.end, frame.base), "axis"))
    x = float(_LEFT)
    for name in _present(timeline):
        parts.append(key(x, _HEIGHT - 28, COLOURS[name], name))
        x += 18 + _LETTER * len(name) + 26
    return document(_WIDTH, _HEIGHT, f"live memory over one training step of {title}", parts, LIGHT_AND_DARK)


def _areas(timeline: Timeline, frame: Frame) -> List[str]:
    """The categories, each stacked on the one before."""
    points = _sampled(timeline, frame.end - frame.left)
    columns = [frame.x(at) for at, _ in points]
    if columns:
        # The last event lasts to the end of the step.
        points, columns = [*points, points[-1]], [*columns, float(frame.end)]
    lower = [0.0] * len(points)
    found = []
    for number, (name, colour) in enumerate(COLOURS.items()):
        upper = [below + sizes[number] / MIB for below, (_, sizes) in zip(lower, points)]
        if any(high > low for high, low in zip(upper, lower)):
            shape = outline([*_row(columns, upper, frame), *reversed(_row(columns, lower, frame))])
            found.append(f'<path d="{shape}" fill="{colour}"><title>{name}</title></path>')
        lower = upper
    return found


def _row(columns: Sequence[float], sizes: Sequence[float], frame: Frame) -> List[Tuple[float, float]]:
    return [(x, frame.y(size)) for x, size in zip(columns, sizes)]


def _phases(timeline: Timeline, frame: Frame) -> List[str]:
    """Where each phase begins, and its name where there is room for it."""
    found = []
    for span in timeline.spans:
        x = frame.x(span.first)
        found.append(line((x, frame.top), (x, frame.base + 8), "edge"))
        if frame.x(span.last) - x > _LETTER * len(span.name) + 8:
            found.append(text(x + 5, frame.base + 20, span.name, "ink"))
    return found


def _peak(timeline: Timeline, frame: Frame) -> List[str]:
    """A line down to the peak only: it may be a spike of one column."""
    x = frame.x(timeline.peak_point)
    anchor, shift = ("end", -6) if x > frame.width * 0.8 else ("start", 6)
    return [
        line((x, frame.top - 10), (x, frame.y(timeline.peak_bytes / MIB)), "axis"),
        text(
            x + shift,
            frame.top - 4,
            f"{format_mib(timeline.peak_bytes / MIB)} of tensors",
            "ink",
            anchor=anchor,
        ),
    ]


def _sampled(line: Timeline, columns: int) -> List[Tuple[int, Tuple[int, ...]]]:
    """(point, bytes by category in the order of COLOURS), the highest of each column's points."""
    order = [line.categories.index(name) for name in COLOURS]
    count = len(line.points)
    found = []
    for column in range(min(columns, count)):
        first = column * count // min(columns, count)
        last = max(first + 1, (column + 1) * count // min(columns, count))
        best = max(range(first, last), key=lambda at: sum(line.points[at]))
        found.append((best, tuple(line.points[best][at] for at in order)))
    return found


def _present(line: Timeline) -> List[str]:
    """The categories that have anything to show, in the order of COLOURS."""
    most = {name: max((p[line.categories.index(name)] for p in line.points), default=0) for name in COLOURS}
    return [name for name, size in most.items() if size * 500 >= line.peak_bytes]
