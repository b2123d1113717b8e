"""An exception that a traced command only printed: before torch was imported, or caught by a framework."""

from __future__ import annotations

import os
import re
from typing import NamedTuple, Optional

from slurm_gpumem.tracing.own_code import is_users
from slurm_gpumem.tracing.user_line import shortened

_ERROR = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception|Interrupt))(?::\s*(.*))?$")
_FRAME = re.compile(r'^\s+File "([^"]+)", line (\d+)(?:, in (\S+))?')
_PYTHON = re.compile(r"/lib(?:64)?/python3[^/]*/")
"""Of any Python, not only the one that reads this."""


class Printed(NamedTuple):
    """What a traceback says."""

    kind: str
    text: str
    """The error in its own words, and below them the innermost line of the user's code, if there is one."""


def printed_error(output: str) -> Optional[Printed]:
    """The last exception in the last lines of an output; None where there is none with a traceback."""
    lines = output.splitlines()
    for at in range(len(lines) - 1, -1, -1):
        found = _ERROR.match(lines[at])
        if found is None:
            continue
        place = _place(lines, at)
        if place is None:
            return None
        kind, words = found.group(1), found.group(2) or ""
        error = shortened(f"{kind}: {words}" if words else kind)
        return Printed(kind, f"{error}\n{place}" if place else error)
    return None


def _place(lines: list[str], end: int) -> Optional[str]:
    """The user's innermost frame above an error; "" where all are libraries', None where there is none."""
    seen = False
    for at in range(end - 1, -1, -1):
        frame = _FRAME.match(lines[at])
        if frame is None:
            continue
        seen = True
        path, line, name = frame.groups()
        if _PYTHON.search(path) or not is_users(path):
            continue
        inside = "" if name in (None, "<module>") else f", in {name}"
        code = lines[at + 1].strip() if at + 1 < end and not _FRAME.match(lines[at + 1]) else ""
        shown = f": {shortened(code, 100)}" if code else ""
        return f"{os.path.basename(path)}, line {line}{inside}{shown}"
    return "" if seen else None
