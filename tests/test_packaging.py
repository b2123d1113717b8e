"""What travels with the installed package: all that runs need, and not the megabytes of measured data."""

from __future__ import annotations

import configparser
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
        ("slurm_gpumem.accounting", "page/*"),
        ("slurm_gpumem.lua", "*.lua"),
        ("slurm_gpumem.models", "*.toml"),
        ("slurm_gpumem.prolog", "*"),
        ("slurm_gpumem.training", "*.json"),
        ("slurm_gpumem.training.catalogue", "*.toml"),
        ("slurm_gpumem.training.configs", "*.toml"),
    ],
)
def test_files_that_the_commands_read_are_packaged(package: str, needed: str) -> None:
    files = {path for path in _folder(package).glob(needed) if path.is_file()}
    assert files
    assert files <= _packaged(package)


def test_measured_data_stays_in_the_repository() -> None:
    packaged = {path for package in PACKAGES for path in _packaged(package)}
    assert not [path for path in packaged if path.suffix in (".gz", ".xz")]
    assert not [path for path in packaged if {"ground-truth", "allocator"} & set(path.parts)]
