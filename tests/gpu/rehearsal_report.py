"""The rehearsal's report."""

from __future__ import annotations

from pathlib import Path


def write_report(out: Path) -> None:
    """Write rehearsal.md and rehearsal.svg from the rows of all modes."""
