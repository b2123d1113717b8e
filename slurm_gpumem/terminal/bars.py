"""The parts of an estimate as lines of text: a name, MiB, and a bar each."""

from __future__ import annotations

import sys
from typing import List, Mapping, Optional, TextIO

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


def terminal_width(stream: Optional[TextIO] = None) -> Optional[int]:
    """Columns of the terminal that the stream (default: stdout) is; None for a file or a pipe."""
    if not (sys.stdout if stream is None else stream).isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns
