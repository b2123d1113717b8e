"""A machine whose Slurm commands fail at once."""

from __future__ import annotations

from pathlib import Path

import pytest


def without_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point Slurm's commands at a configuration they refuse at once; for a missing one they wait a minute."""
    path = folder / "empty-slurm.conf"
    path.write_text("")
    monkeypatch.setenv("SLURM_CONF", str(path))
