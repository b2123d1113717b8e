"""The page that maps the publication to this project names everything in it, and commands that exist."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Set

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "lab" / "docs" / "reproduction.md").read_text(encoding="utf-8")
FIGURES = {1: 1, 2: 2, 3: 4, 4: 13, 5: 13, 6: 15, 7: 1}
TABLES = {1: 1, 3: 2, 4: 2, 5: 7, 6: 6}
"""How many figures and tables the dissertation's chapters have."""
MAP = PAGE[: PAGE.index("| paper | here |")]


def _named(word: str) -> Set[str]:
    """Numbers after "figure" or "table" in the first column: "figures 3.1 to 3.4, 6.2"."""
    found: Set[str] = set()
    for cell in re.findall(r"^\| ([^|]+) \|", MAP, re.M):
        for part in re.findall(rf"{word}s? ((?:\d\.\d+(?:, | to | and )?)+)", cell):
            for first, last in re.findall(r"(\d\.\d+)(?: to (\d\.\d+))?", part):
                chapter, low = first.split(".")
                high = (last or first).split(".")[1]
                found |= {f"{chapter}.{number}" for number in range(int(low), int(high) + 1)}
    return found


@pytest.mark.parametrize(("word", "counts"), [("figure", FIGURES), ("table", TABLES)])
def test_every_figure_and_table_of_the_dissertation_is_mapped(word: str, counts: dict[int, int]) -> None:
    wanted = {f"{chapter}.{number}" for chapter, count in counts.items() for number in range(1, count + 1)}
    assert _named(word) == wanted


def test_every_make_target_that_it_names_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"`make ([\w-]+)", PAGE)) | set(re.findall(r"^\$ make ([\w-]+)", PAGE, re.M))
    assert named
    assert named <= targets


def test_every_module_and_file_that_it_names_exists() -> None:
    modules = set(re.findall(r"python -m ((?:slurm_gpumem|lab)[\w.]+)", PAGE))
    assert modules
    for module in modules:
        assert importlib.util.find_spec(module) is not None, module
    for path in re.findall(r"`((?:slurm_gpumem|lab|tests|models)/[\w./-]+)`", PAGE):
        assert (ROOT / path).exists(), path


def test_gpumem_knows_the_options_and_estimators_that_it_names() -> None:
    for line in set(re.findall(r"`(gpumem [^`]+)`", PAGE)):
        command, *options = line.split()[1:]
        shown = subprocess.run(
            [sys.executable, "-m", "slurm_gpumem", command, "--help"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for option in options:
            assert not option.startswith("--") or option in shown, line
    from slurm_gpumem.estimators import registry

    named = set(re.findall(r"--estimator ([\w-]+)", PAGE)) - {"all"}
    assert {"horus", "horus-authors", "faketensor"} <= named <= set(registry.ESTIMATORS)
