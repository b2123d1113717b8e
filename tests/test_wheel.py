"""What `pip install` of a built wheel gives: all that an estimate reads is in it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def installed(folder: Path) -> Path:
    """The package as a wheel holds it, unpacked."""
    source = folder / "source"
    # A build writes beside its sources; these must stay as they are.
    subprocess.run(["git", "clone", "-q", str(ROOT), str(source)], check=True)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        ".",
    ]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "site")
    return folder / "site"


def test_an_installed_wheel_estimates_summaries(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", reason="building a wheel needs setuptools")
    site = installed(tmp_path)
    for name in ("resnet50.txt", "small-cnn.txt"):
        summary = ROOT / "docs" / "examples" / name
        command = [sys.executable, "-m", "slurm_gpumem", "estimate", str(summary), "--batch-size", "32"]
        done = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "peak" in done.stdout
