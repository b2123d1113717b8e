"""Small shell scripts for the cluster's users."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Tuple


def write_script(path: Path, *lines: str) -> None:
    """Write a shell script that everybody may run."""
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)


def find_python() -> Tuple[str, ...]:
    """Lines that set $python: ours if the user may run it, otherwise the system's."""
    # Ours may be in a home directory that others cannot enter, or outside a tree that we changed into.
    ours = os.path.realpath(sys.executable)
    candidates = " ".join(shlex.quote(path) for path in (ours, "/usr/bin/python3", "python3"))
    return (
        f"for python in {candidates}; do",
        '  command -v "$python" >/dev/null 2>&1 && break',
        "done",
    )
