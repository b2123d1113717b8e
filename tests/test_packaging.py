"""What travels with the installed package: all that runs need, and not the megabytes of measured data."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CONFIG = configparser.ConfigParser()
CONFIG.read(ROOT / "setup.cfg")
PACKAGES = CONFIG["options"]["packages"].split()
FOLDERS = dict(line.split(" = ") for line in CONFIG["options"]["package_dir"].strip().splitlines())


def _folder(package: str) -> Path:
    return ROOT / FOLDERS.get(package, package.replace(".", "/"))


def _packaged(package: str) -> set[Path]:
    patterns = CONFIG["options.package_data"].get(package, "").replace(",", " ").split()
    return {path for pattern in patterns for path in _folder(package).glob(pattern)}


def test_every_package_is_listed() -> None:
    found = {
        ".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "slurm_gpumem").rglob("__init__.py")
    }
    assert found == set(PACKAGES) - set(FOLDERS)


@pytest.mark.parametrize(
    ("package", "needed"),
    [
        ("slurm_gpumem.report.html", "assets/*"),
        ("slurm_gpumem.lua", "*.lua"),
        ("slurm_gpumem.models", "*.toml"),
        ("slurm_gpumem.prolog", "*"),
        ("slurm_gpumem.lab", "*.json"),
        ("slurm_gpumem.lab.catalogue", "*.toml"),
        ("slurm_gpumem.lab.plans", "*.toml"),
    ],
)
def test_files_that_the_commands_read_are_packaged(package: str, needed: str) -> None:
    files = {path for path in _folder(package).glob(needed) if path.is_file()}
    assert files
    assert files <= _packaged(package)


def test_measured_data_stays_in_the_repository() -> None:
    packaged = {path for package in PACKAGES for path in _packaged(package)}
    assert not [path for path in packaged if {"ground-truth", "blind-check", "allocator"} & set(path.parts)]
    assert not [path for path in packaged if path.suffix == ".xz" or "folds" in path.name]
    assert sum(path.stat().st_size for path in packaged) < 5_000_000


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
