"""The timeline of `gpumem why` as a PNG file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm_gpumem.estimators.training_job import describe_job
from slurm_gpumem.report.why.series import COLOURS, MIB, present, sampled
from slurm_gpumem.terminal.chart import ticks
from slurm_gpumem.terminal.png import Canvas, text_width
from slurm_gpumem.units import format_mib

if TYPE_CHECKING:
    from slurm_gpumem.cli.why import Reasons

_WIDTH, _HEIGHT = 1200, 640
_LEFT, _TOP, _RIGHT, _BOTTOM = 100, 96, 30, 96
_INK, _PALE, _LINE = (40, 40, 40), (110, 110, 110), (225, 225, 225)


def why_png(reasons: Reasons) -> bytes:
    """Live memory by category over the step, with phases and the peak marked."""
    canvas = Canvas(_WIDTH, _HEIGHT)
    line = reasons.timeline
    columns, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    top = max(line.peak_bytes / MIB * 1.05, 1.0)
    base = _TOP + height

    def y_of(mib: float) -> int:
        return base - round(mib / top * height)

    canvas.text(20, 18, reasons.subject.summary.name or "model", _INK, size=22, weight=2.0)
    job = f"{describe_job(reasons.estimate.job)}, {reasons.gpu.name}"
    peak = f"peak {format_mib(reasons.estimate.peak_mib)} with context and fragmentation"
    canvas.text(20, 48, f"{job}: {peak}", _PALE, size=15)
    for value, label in ticks(top):
        canvas.rectangle(_LEFT, y_of(value), columns, 1, _LINE)
        canvas.text(_LEFT - 10 - text_width(label, 13), y_of(value) - 5, label, _PALE, size=13)
    points = sampled(line, columns)
    for column in range(columns if points else 0):
        _, sizes = points[column * len(points) // columns]
        below = 0.0
        for colour, size in zip(COLOURS.values(), sizes):
            upper, lower = y_of((below + size) / MIB), y_of(below / MIB)
            canvas.rectangle(_LEFT + column, upper, 1, lower - upper, colour)
            below += size
    canvas.rectangle(_LEFT, base, columns, 1, _INK)
    count = max(1, len(line.points))
    for span in line.spans:
        x = _LEFT + span.first * columns // count
        wide = (span.last - span.first) * columns / count
        canvas.rectangle(x, base, 1, 10, _INK)
        if wide > text_width(span.name, 14) + 8:
            canvas.text(x + 6, base + 8, span.name, _INK, size=14)
    x = _LEFT + line.peak_point * columns // count
    # Down to the peak only: it may be a spike of one column.
    canvas.rectangle(x, _TOP - 8, 1, y_of(line.peak_bytes / MIB) - _TOP + 8, _INK)
    label = f"{format_mib(line.peak_bytes / MIB)} of tensors"
    canvas.text(min(x + 6, _WIDTH - _RIGHT - text_width(label, 14)), _TOP - 18, label, _INK, size=14)
    x_legend = float(_LEFT)
    for name in present(line):
        canvas.rectangle(round(x_legend), _HEIGHT - 38, 14, 14, COLOURS[name])
        canvas.text(x_legend + 20, _HEIGHT - 36, name, _INK, size=14)
        x_legend += 20 + text_width(name, 14) + 26
    return canvas.png()
