"""Which answer a check of values wants: "labels in range?", "any NaN?" stop a script if it is wrong."""

from __future__ import annotations

import ast
import linecache
import os
import sys
from functools import lru_cache
from types import FrameType
from typing import Optional, Tuple

import torch

_NOT_THE_ASKER = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
)


def wanted() -> Optional[bool]:
    """The truth with which the code that now reads a boolean goes on; None if either may be.

    `if bad.any(): raise …` wants False, `assert ok.all()` True.
    """
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_ASKER):
        frame = frame.f_back
    if frame is None:
        return None
    for first, last, truth in _checks(frame.f_code.co_filename):
        if first <= frame.f_lineno <= last:
            return truth
    return None


@lru_cache(maxsize=64)
def _checks(path: str) -> Tuple[Tuple[int, int, bool], ...]:
    """Lines of the conditions of a file that raise, and the truth with which they do not."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ()  # no source, or not this Python's
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            found.append(_lines_of(node.test, True))
        elif isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise):
            found.append(_lines_of(node.test, False))
    return tuple(found)


def _lines_of(test: ast.expr, good: bool) -> Tuple[int, int, bool]:
    negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    return test.lineno, test.end_lineno or test.lineno, good != negated
