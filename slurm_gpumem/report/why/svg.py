"""The drawing of `gpumem why`: live memory over the step; a file of its own, and what the page shows."""

from __future__ import annotations

from typing import List, Sequence, Tuple

from slurm_gpumem.estimators.explain.reasons import PeakReasons
from slurm_gpumem.estimators.explain.timeline import Timeline
from slurm_gpumem.estimators.training_job import describe_estimated
from slurm_gpumem.report.why.series import COLOURS, present, sampled
from slurm_gpumem.svg import LIGHT_AND_DARK, Frame, document, key, line, outline, text
from slurm_gpumem.terminal.chart import ticks
from slurm_gpumem.units import MIB, format_mib

STYLE = LIGHT_AND_DARK
_WIDTH, _HEIGHT = 1000, 520
_LEFT, _TOP, _RIGHT, _BOTTOM = 76, 96, 16, 72
_LETTER = 7.2
"""Approximate width of a letter; only used for our own labels."""


def heading(reasons: PeakReasons) -> Tuple[str, str]:
    """What every picture of it has above: the model, and the job with its peak."""
    job = f"{describe_estimated(reasons.summary, reasons.estimate)}, {reasons.gpu.name}"
    peak = f"peak {format_mib(reasons.estimate.peak_mib)} with context and fragmentation"
    return reasons.summary.name or "model", f"{job}: {peak}"


def peak_label(timeline: Timeline) -> str:
    """What is labelled at the peak."""
    return f"{format_mib(timeline.peak_bytes / MIB)} of tensors"


def why_svg(reasons: PeakReasons) -> str:
    """Live memory by category over the step, with phases and the peak marked."""
    timeline = reasons.timeline
    top = max(timeline.peak_bytes / MIB * 1.04, 1.0)
    across = (0.0, float(max(1, len(timeline.points))))
    frame = Frame(_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM, across, (0.0, top))
    title, job = heading(reasons)
    parts = [text(16, 30, title, "title ink"), text(16, 54, job)]
    parts += [frame.level(value, label) for value, label in ticks(top)]
    parts += _phases(timeline, frame)
    parts += _areas(timeline, frame)
    parts += _peak(timeline, frame)
    parts.append(line((_LEFT, frame.base), (frame.end, frame.base), "axis"))
    x = float(_LEFT)
    for name in present(timeline):
        parts.append(key(x, _HEIGHT - 28, COLOURS[name], name))
        x += 18 + _LETTER * len(name) + 26
    return document(_WIDTH, _HEIGHT, f"live memory over one training step of {title}", parts, STYLE)


def _areas(timeline: Timeline, frame: Frame) -> List[str]:
    """The categories, each stacked on the one before."""
    points = sampled(timeline, frame.end - frame.left)
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
        text(x + shift, frame.top - 4, peak_label(timeline), "ink", anchor=anchor),
    ]
