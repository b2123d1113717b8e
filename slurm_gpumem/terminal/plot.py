"""Small plots for a terminal: a filled curve, a few lines high."""

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
        cells = "".join(_cell(value, top, height, row, unicode) for value in columns)
        lines.append(f"{label:>{margin}} {axis}{cells}".rstrip())
    lines.append(f"{'0':>{margin}} {corner}{('─' if unicode else '-') * len(columns)}")
    return lines


def resample(values: Sequence[Optional[float]], width: int) -> List[Optional[float]]:
    """So many columns: the most of each stretch, so that no peak is lost; a short curve is stretched."""
    if not values:
        return []
    found: List[Optional[float]] = []
    for column in range(width):
        first = column * len(values) // width
        last = max(first + 1, (column + 1) * len(values) // width)
        known = [value for value in values[first:last] if value is not None]
        found.append(max(known) if known else None)
    return found


def _cell(value: Optional[float], top: float, height: int, row: int, unicode: bool) -> str:
    if value is None or top <= 0:
        return " "
    eighths = min(1.0, value / top) * height * 8
    here = eighths - (height - 1 - row) * 8
    if not unicode:
        return "#" if here >= 4 else " "
    # The lowest row shows that there was something at all.
    least = 1 if row == height - 1 and value > 0 else 0
    return _EIGHTHS[max(least, min(8, round(here)))]
