"""The library that CUDA programs of shared jobs load, built as an installation does it."""

from __future__ import annotations

import subprocess
from pathlib import Path


def build_end_library(hooks: Path) -> Path:
    """In a folder that has the hooks' files."""
    subprocess.run([hooks / "build_end.sh"], check=True)
    return hooks / "libgpumem_end.so"
