"""Filled curves for a terminal: what a cell shows, and a small plot a few lines high."""

from __future__ import annotations

from typing import List, Optional, Sequence

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def plot(
    values: Sequence[Optional[float]],
    top: float,
    *,
    width: int,
    height: int,
    labels: Sequence[str],
    unicode: bool,
) -> List[str]:
    """The curve from 0 to `top`, one line a row; `labels` stand before the first rows."""
    columns = resample(values, width)
    margin = max((len(label) for label in labels), default=0)
    axis, corner = ("┤", "└") if unicode else ("|", "+")
    lines = []
    for row in range(height):
        label = labels[row] if row < len(labels) else ""
        cells = "".join(block(value, height - 1 - row, top, height, unicode) for value in columns)
        lines.append(f"{label:>{margin}} {axis}{cells}".rstrip())
    lines.append(f"{'0':>{margin}} {corner}{('─' if unicode else '-') * len(columns)}")
    return lines


def resample(values: Sequence[Optional[float]], columns: int) -> List[Optional[float]]:
    """One value a column: the most of each stretch, so that no peak is lost; a short curve is stretched."""
    if not values:
        return []
    found: List[Optional[float]] = []
    for column in range(columns):
        first = column * len(values) // columns
        last = max(first + 1, (column + 1) * len(values) // columns)
        known = [value for value in values[first:last] if value is not None]
        found.append(max(known) if known else None)
    return found


def block(value: Optional[float], row: int, top: float, height: int, unicode: bool) -> str:
    """What the cell of a value shows in a row, counted from the lowest, of a curve from 0 to `top`."""
    if value is None or top <= 0:
        return " "
    filled = min(1.0, value / top) * height - row
    if not unicode:
        return "#" if filled >= 0.5 else " "
    # The lowest row shows that there was something at all.
    least = 1 if row == 0 and value > 0 else 0
    return _EIGHTHS[max(least, min(8, round(filled * 8)))]
