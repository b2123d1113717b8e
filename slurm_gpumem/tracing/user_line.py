"""Turn an exception of the user's code into two or three lines: the error, and the line of their code."""

from __future__ import annotations

import linecache
import os
import traceback
from typing import Sequence, Tuple

from slurm_gpumem.tracing.own_code import OURS, STANDARD, is_users

_MAX = 240
_PASSED_ON = ("__torch_function__", "__torch_dispatch__", "call")
"""Our functions that every operator of a model passes through."""


def user_line(error: BaseException) -> str:
    """The innermost line of the user's code, for people: "train.py, line 14, in forward: x = ..."."""
    frames = [(f.filename, f.lineno or 0, f.name) for f in _frames(error)]
    mine = [frame for frame in frames if is_users(frame[0])]
    if not mine:
        # A library's own model: its file is more useful than torch's.
        mine = [
            f
            for f in frames
            if not f[0].startswith((OURS, STANDARD, "<")) and f"{os.sep}torch{os.sep}" not in f[0]
        ]
    return _written(mine[-1]) if mine else ""


def here() -> str:
    """The innermost line of the user's code that is running now."""
    return from_stack(traceback.extract_stack())


def _frames(error: BaseException) -> Sequence[traceback.FrameSummary]:
    return traceback.extract_tb(error.__traceback__, limit=-2000)


def _written(frame: Tuple[str, int, str]) -> str:
    path, line, name = frame
    inside = "" if name == "<module>" else f", in {name}"
    code = linecache.getline(path, line).strip()
    return f"{os.path.basename(path)}, line {line}{inside}" + (f": {shortened(code, 100)}" if code else "")


def own_words(error: BaseException) -> str:
    """The exception's own message, shortened: its kind and its first meaningful line."""
    kind = type(error).__name__
    text = _first_line(str(error))
    return f"{kind}: {text}" if text else kind


def _first_line(text: str) -> str:
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    return shortened(lines[0]) if lines else ""


def shortened(text: str, limit: int = _MAX) -> str:
    """At most `limit` characters, cut at the end."""
    return text if len(text) <= limit else text[: limit - 4].rstrip() + " ..."


def from_stack(stack: Sequence[traceback.FrameSummary]) -> str:
    """The innermost line of the user's code on a stack; "" if there is none."""
    mine = [f for f in stack if is_users(f.filename)]
    return _written((mine[-1].filename, mine[-1].lineno or 0, mine[-1].name)) if mine else ""


def is_ours(error: BaseException) -> bool:
    """Whether it was raised by a line of this package, without code of others involved."""
    frames = _frames(error)
    if not frames or frames[-1].name in _PASSED_ON or any(is_users(frame.filename) for frame in frames):
        return False
    return frames[-1].filename.startswith(OURS)


def innermost(error: BaseException) -> str:
    """The line that raised it: "loop.py, line 12"."""
    frames = _frames(error)
    return f"{os.path.basename(frames[-1].filename)}, line {frames[-1].lineno}" if frames else ""
