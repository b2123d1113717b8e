"""What one job did on one GPU over time, as a record holds it: one short text, quick to pass over.

`1700049600.0 60.0;500 9000 - 11600;0 40 80 -`: Unix time of the first step's beginning and seconds of a step;
MiB of every step; percent of every step. "-" is not known.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Sequence, Tuple

MOST_STEPS = 1000
"""A reader takes no more; a sampler writes far fewer."""
_MOST_TIME = 1e11


class Curve(NamedTuple):
    """Memory and activity in steps of equal length; at most some dozens of them."""

    start: float
    """Unix time at which the first step begins."""
    step_s: float
    memory_mib: Tuple[Optional[int], ...]
    """The most that the job held within each step."""
    sm_active: Tuple[Optional[float], ...]
    """The job's part of the GPU's SM activity, mean of each step; as long as `memory_mib`."""


def format_curve(curve: Curve) -> str:
    """The text of a curve."""
    percent = [None if share is None else round(share * 100) for share in curve.sm_active]
    return f"{round(curve.start, 1)} {curve.step_s};{_words(curve.memory_mib)};{_words(percent)}"


def parse_curve(text: str) -> Optional[Curve]:
    """The curve of a text; None when it is no such text."""
    try:
        when, memory_words, percent_words = text.split(";")
        start, step_s = map(float, when.split())
    except ValueError:
        return None
    memory, percent = _numbers(memory_words), _numbers(percent_words)
    if not (0 < start < _MOST_TIME and 0 < step_s < _MOST_TIME and memory):
        return None
    shares = [None if value is None else min(1.0, value / 100) for value in percent]
    shares = (shares + [None] * len(memory))[: len(memory)]
    return Curve(start, step_s, tuple(memory), tuple(shares))


def _words(values: Sequence[Optional[int]]) -> str:
    return " ".join(["-" if value is None else str(value) for value in values])


def _numbers(text: str) -> List[Optional[int]]:
    words = text.split(maxsplit=MOST_STEPS)[:MOST_STEPS]
    return [int(word) if word.isascii() and word.isdigit() and len(word) < 10 else None for word in words]
