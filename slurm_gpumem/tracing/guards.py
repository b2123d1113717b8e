"""Which answer a check of values wants: "labels in range?", "any NaN?" stop a script if it is wrong."""

from __future__ import annotations

import ast
import linecache
import os
import sys
from functools import lru_cache
from types import FrameType
from typing import Any, Dict, Optional, Tuple

import torch

_NOT_THE_ASKER = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
)
_ROUNDS = 20
"""Equal answers after which a loop gets others; values may become known in its first rounds."""
_ENDS = (0.0, float(1 << 30))
"""Numbers that end a loop which waits until one is small, or large."""
_MOST_ENDS = 1000
"""How often a loop of one call is ended: a script that trains in its own lines meets it in each step."""


def wanted() -> Optional[bool]:
    """The truth with which the code that now reads a boolean goes on; None if either may be.

    `if bad.any(): raise …` wants False, `assert ok.all()` True.
    """
    frame = _asker()
    if frame is None:
        return None
    for first, last, truth in _checks(frame.f_code.co_filename):
        if first <= frame.f_lineno <= last:
            return truth
    return None


class EndlessLoop(RuntimeError):
    """A loop's end depends on values that a trace does not have."""


class _Rounds:
    """How often each line of one call of a function asked for an unknown value."""

    def __init__(self) -> None:
        self.asked: Dict[int, int] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """A debugger that is on calls what a frame keeps; it then follows this frame no further."""


def loop_answer(recorder: Any, guess: Any) -> Any:
    """The guess, or another answer once a loop has asked for it again and again: it ends only by values.

    Unknown values are always answered alike, so a loop that only its condition ends would never end.
    """
    frame = _asker()
    if frame is None:
        return guess
    path, line = frame.f_code.co_filename, frame.f_lineno
    if not any(first <= line <= last for first, last in _open_loops(path)):
        return guess
    # Kept in the frame: its id is the next call's when it is gone, and a list of frames would keep tensors.
    if not isinstance(frame.f_trace, _Rounds):
        frame.f_trace = _Rounds()
    asked = frame.f_trace.asked.get(line, 0)
    frame.f_trace.asked[line] = asked + 1
    ends = (not guess,) if isinstance(guess, bool) else tuple(map(type(guess), _ENDS))
    ended, asked = divmod(asked, _ROUNDS + len(ends))
    if asked < _ROUNDS and ended < _MOST_ENDS:
        return guess
    where = f"the loop at {os.path.basename(path)}, line {line},"
    if ended >= _MOST_ENDS:
        raise EndlessLoop(f"how often {where} runs depends on values on the GPU, which a trace does not have")
    recorder.warn_once(
        f"loop {path} {line}",
        f"how often {where} runs depends on values on the GPU, which a trace does not have: it was ended "
        f"after {_ROUNDS} rounds. Where more rounds keep more memory, let one run be measured: gpusbatch "
        "without --trace",
    )
    return ends[asked - _ROUNDS]


def _asker() -> Optional[FrameType]:
    """The frame of the script or of a library that asks for a value."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_ASKER):
        frame = frame.f_back
    return frame


@lru_cache(maxsize=64)
def _open_loops(path: str) -> Tuple[Tuple[int, int], ...]:
    """Lines of the conditions of a file's `while` loops that nothing else ends: no count, break or return."""
    found = []
    for node in ast.walk(_parsed(path)):
        if not isinstance(node, ast.While) or isinstance(node.test, ast.BoolOp):
            continue
        if not any(isinstance(inner, (ast.Break, ast.Return)) for inner in ast.walk(node)):
            found.append((node.test.lineno, node.test.end_lineno or node.test.lineno))
    return tuple(found)


def _parsed(path: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])  # no source, or not this Python's


@lru_cache(maxsize=64)
def _checks(path: str) -> Tuple[Tuple[int, int, bool], ...]:
    """Lines of the conditions of a file that raise, and the truth with which they do not."""
    found = []
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Assert):
            found.append(_lines_of(node.test, True))
        elif isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise):
            found.append(_lines_of(node.test, False))
    return tuple(found)


def _lines_of(test: ast.expr, good: bool) -> Tuple[int, int, bool]:
    negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    return test.lineno, test.end_lineno or test.lineno, good != negated
