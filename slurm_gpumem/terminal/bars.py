"""The parts of an estimate, or of GPUs, as lines of text with a bar each."""

from __future__ import annotations

import sys
from typing import List, Mapping, NamedTuple, Optional, Sequence, TextIO, Tuple

from slurm_gpumem.text import printable
from slurm_gpumem.units import exact_mib

_EIGHTHS = " ▏▎▍▌▋▊▉"
_FULL = "█"
BAR_WIDTH = 40


def parts_lines(parts: Mapping[str, int], *, unicode: bool = True) -> List[str]:
    """One line a part; a bar of BAR_WIDTH is the whole."""
    whole = sum(parts.values())
    width = max((len(name) for name in parts), default=0)
    return [
        f"  {name:<{width}} {exact_mib(size):>13}  {bar(size, whole, unicode=unicode)}".rstrip()
        for name, size in parts.items()
    ]


def bar(part: int, whole: int, *, width: int = BAR_WIDTH, unicode: bool = True) -> str:
    """A bar whose length is `part` of `whole`; anything above nothing shows."""
    if part <= 0 or whole <= 0:
        return ""
    if not unicode:
        return "#" * max(1, round(part / whole * width))
    eighths = max(1, round(part / whole * width * 8))
    return (_FULL * (eighths // 8) + _EIGHTHS[eighths % 8]).strip()


def speaks_unicode(stream: Optional[TextIO] = None) -> bool:
    """Whether bars and arrows can be written to the stream (default: stdout)."""
    encoding = getattr(sys.stdout if stream is None else stream, "encoding", None) or "ascii"
    try:
        "█▏→│└─".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def terminal_width() -> Optional[int]:
    """Columns of the terminal that stdout is; None for a file or a pipe."""
    if not sys.stdout.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


# GPUs as bars, jobs as segments: one line a GPU, readable without colour.


class Segment(NamedTuple):
    """One job's part of a GPU."""

    job: str
    name: str
    units: int
    size: str
    """The part in human units: "13G"."""


class GpuRow(NamedTuple):
    """One GPU and who is on it."""

    node: str
    gpu: int
    capacity: int
    segments: Tuple[Segment, ...] = ()
    kind: str = ""
    """What else to call it by: a MIG profile."""

    @property
    def label(self) -> str:
        """ "gpu0", "gpu1:1g.18gb"."""
        return f"gpu{self.gpu}{f':{self.kind}' if self.kind else ''}"


_UNICODE = ("█▒░", "▕", "▏")
_ASCII = ("#=-", "|", "|")
_LEAST_FILL = 1
"""Columns of fill that stay on each side of a label, so that it is seen whose it is."""


def draw(rows: Sequence[GpuRow], *, width: int = 100, unicode: bool = True) -> List[str]:
    """The picture's lines, none wider than `width`."""
    fills, left, right = _UNICODE if unicode else _ASCII
    name_width = max((len(row.node) for row in rows), default=0)
    label_width = max((len(row.label) for row in rows), default=0)
    count_width = max((len(str(row.capacity)) for row in rows), default=0)
    # Around the bar: node, two blanks, gpuN, a blank, two edges, a blank, used/capacity.
    bar_width = max(20, width - (name_width + 2 + label_width + 1 + 2 + 1 + 2 * count_width + 1))
    lines = []
    shown_node = None
    for row in rows:
        node = row.node if row.node != shown_node else ""
        shown_node = row.node
        used = sum(segment.units for segment in row.segments)
        lines.append(
            f"{node:<{name_width}}  {row.label:<{label_width}} {left}{_bar(row, bar_width, fills)}{right} "
            f"{used:>{count_width}}/{row.capacity}"
        )
    return lines


def _bar(row: GpuRow, width: int, fills: str) -> str:
    bar, units = "", 0
    for number, segment in enumerate(row.segments):
        units += segment.units
        # Ends are rounded, not lengths: the parts of a full GPU fill its bar exactly.
        end = min(width, round(units / row.capacity * width)) if row.capacity else 0
        bar += _segment(segment, end - len(bar), fills[number % len(fills)])
    return bar.ljust(width)


def _segment(segment: Segment, width: int, fill: str) -> str:
    # A job's name may hold anything; a terminal gets no control characters of its owner's.
    full = f" {segment.job} {printable(segment.name)} {segment.size} "
    for label in (full, f" {segment.job} {segment.size} ", f" {segment.job} "):
        if len(label) + 2 * _LEAST_FILL <= width:
            return label.center(width, "\0").replace("\0", fill)
    return fill * width
