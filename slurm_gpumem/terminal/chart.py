"""Charts of memory for the terminal: an area under a line, an axis in GiB, a mark across, labels below."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from slurm_gpumem.terminal.bars import speaks_unicode

# Filled curves for a terminal: what a cell shows, and a small plot a few lines high.


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


_STEPS = (1, 2, 5, 10)
LEAST_WIDTH, MOST_WIDTH = 40, 100


@dataclass(frozen=True)
class Mark:
    """A horizontal line across the chart."""

    mib: float
    label: str


@dataclass(frozen=True)
class Style:
    """What the terminal can show."""

    width: int = 80
    unicode: bool = True


def terminal_style() -> Style:
    """As wide as the terminal (within reason), with what its encoding has."""
    columns = shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else _columns()
    return Style(max(LEAST_WIDTH, min(columns, MOST_WIDTH)), speaks_unicode())


def _columns() -> int:
    # In a pipe there is no terminal to ask; COLUMNS sets the width.
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isascii() and text.isdigit() else 80


def area_chart(
    values: Sequence[Optional[float]],
    *,
    style: Style,
    height: int = 12,
    mark: Optional[Mark] = None,
) -> List[str]:
    """`values` (MiB, one a column of the plot) as an area with an axis at the left; no line is wider
    than the style's width when there are at most `plot_width(style)` of them."""
    most = max([*(value for value in values if value is not None), 1.0])
    top = max([most, *([mark.mib] if mark else [])]) * 1.02
    ticks = _ticks(top, height)
    rows: List[str] = []
    mark_row = _row_of(mark.mib, top, height) if mark else -1
    for row in range(height - 1, -1, -1):
        cells = "".join(block(value, row, top, height, style.unicode) for value in values)
        if row == mark_row and mark is not None:
            cells = _with_mark(cells, mark, style)
        label = ticks.get(row, "")
        edge = ("┤" if label else "│") if style.unicode else ("+" if label else "|")
        rows.append(f"{label:>{_AXIS}} {edge}{cells}".rstrip())
    return rows


_AXIS = 8


def plot_width(style: Style) -> int:
    """Columns that are left for values."""
    return style.width - _AXIS - 2


def axis_line(columns: int, style: Style) -> str:
    """The line under a chart."""
    corner, line = ("└", "─") if style.unicode else ("+", "-")
    return " " * (_AXIS + 1) + corner + line * columns


def below(labels: Sequence[Tuple[int, str]], columns: int) -> str:
    """Labels under the axis, each starting at its column; one that would run into the next is left out."""
    line = ""
    for at, text in sorted(labels):
        start = min(at, max(0, columns - len(text)))
        if start >= len(line) + (1 if line else 0):
            line = line.ljust(start) + text
    return (" " * (_AXIS + 2) + line).rstrip()


def _with_mark(cells: str, mark: Mark, style: Style) -> str:
    """A dashed line through the free cells of a row, its label at the left where there is room."""
    dash = "╌" if style.unicode else "-"
    drawn = "".join(dash if cell == " " else cell for cell in cells)
    label = f" {mark.label} "
    free = len(drawn) - len(drawn.lstrip(dash))
    if free >= len(label) + 2:
        drawn = dash + label + drawn[1 + len(label) :]
    return drawn


def _row_of(mib: float, top: float, height: int) -> int:
    return min(height - 1, int(mib / top * height))


def _ticks(top: float, height: int) -> Dict[int, str]:
    """Labels by the row they stand in."""
    found: Dict[int, str] = {}
    for value, label in ticks(top, max(2, height // 3)):
        found.setdefault(min(height - 1, int(value / top * height)), label)
    return found


def ticks(top_mib: float, count: int = 5) -> List[Tuple[float, str]]:
    """About `count` round values up an axis, in MiB, with their labels."""
    unit, name = (1024.0, "GiB") if top_mib >= 2048 else (1.0, "MiB")
    rough = top_mib / unit / count
    power = 1.0
    while power > rough:
        power /= 10
    while power * 10 <= rough:
        power *= 10
    step = next(power * s for s in _STEPS if power * s >= rough * 0.999)
    found: List[Tuple[float, str]] = []
    value = 0.0
    while value <= top_mib / unit:
        found.append((value * unit, f"{value:g} {name}" if value else "0"))
        value = round(value + step, 6)
    return found
