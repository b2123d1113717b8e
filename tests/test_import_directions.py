"""The folder list is the architecture: who may import whom, and what the submit path never loads."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import slurm_gpumem

PACKAGE = Path(slurm_gpumem.__file__).parent
LAB = PACKAGE.parent / "lab"
ROOMS_ALLOWED: dict[str, set[str]] = {
    "config": set(),
    "formats": set(),
    "slurm": set(),
    "summaries": set(),
    "terminal": set(),
    "tracing": {"summaries"},
    "estimators": {"summaries", "formats", "config"},
    "utilization": {"summaries", "estimators", "formats"},
    "accounting": {"config", "formats", "slurm"},
    "submission": {
        "config",
        "formats",
        "slurm",
        "summaries",
        "estimators",
        "utilization",
        "accounting",
        "terminal",
        "tracing",
    },
    "node": {"config", "formats", "slurm"},
    "recovery": {"config", "formats", "slurm", "node", "submission"},
    "adapters": {"formats", "slurm", "summaries", "terminal", "tracing"},
    "report": {
        "config",
        "formats",
        "slurm",
        "node",
        "accounting",
        "terminal",
        "estimators",
        "summaries",
        "submission",
        "simulation",
    },
    "site": {"config", "formats", "slurm", "utilization", "accounting", "estimators", "devcluster", "node"},
    "simulation": {"config", "estimators", "formats", "slurm", "utilization"},
    "devcluster": {"formats", "slurm", "node", "terminal"},
    "lab": {
        "adapters",
        "config",
        "devcluster",
        "estimators",
        "formats",
        "node",
        "simulation",
        "site",
        "summaries",
        "terminal",
        "tracing",
        "utilization",
    },
}
"""Rooms each room may import, besides itself and the small modules at the top of the package.

The lab is a room beside the package."""
TOP_MODULES_MAY_USE_ROOMS = {"api", "__init__", "__main__"}


def _imported_modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.startswith("slurm_gpumem.")}


def _rooms(path: Path) -> set[str]:
    rooms = {p.name for p in PACKAGE.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    return {parts[1] for name in _imported_modules(path) if (parts := name.split("."))[1] in rooms}


@pytest.mark.parametrize("room", sorted(ROOMS_ALLOWED))
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    for path in (LAB if room == "lab" else PACKAGE / room).rglob("*.py"):
        unexpected = _rooms(path) - ROOMS_ALLOWED[room] - {room}
        assert not unexpected, f"{path.relative_to(PACKAGE.parent)} imports {sorted(unexpected)}"


def test_every_room_is_in_the_list() -> None:
    rooms = {p.name for p in PACKAGE.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert rooms - {"cli"} <= set(ROOMS_ALLOWED)


def test_the_architecture_page_has_the_same_table() -> None:
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]*) \|$", page, re.M)
    assert {room: set(re.findall(r"`(\w+)`", may_import)) for room, may_import in rows} == ROOMS_ALLOWED


def test_small_modules_at_the_top_stand_on_no_room() -> None:
    for path in PACKAGE.glob("*.py"):
        if path.stem not in TOP_MODULES_MAY_USE_ROOMS:
            assert not _rooms(path), f"{path.name} imports a room"


def test_a_submission_never_climbs_back_into_the_commands() -> None:
    code = (
        "import sys, slurm_gpumem.cli.gpusbatch, slurm_gpumem.report.submission\n"
        "import slurm_gpumem.submission.decide, slurm_gpumem.submission.decision\n"
        "print(*(name for name in sys.modules if name.startswith('slurm_gpumem.cli.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert set(done.stdout.split()) == {"slurm_gpumem.cli.gpusbatch"}


@pytest.mark.parametrize("module", ["slurm_gpumem", "slurm_gpumem.api", "slurm_gpumem.cli.gpumem"])
def test_importing_it_loads_no_heavy_library(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert not {"numpy", "torch", "rich", "sklearn", "pydantic"} & set(loaded.split())


def test_an_estimate_loads_nothing_whose_start_takes_as_long_as_the_estimate(tmp_path: Path) -> None:
    summary = PACKAGE.parent / "docs" / "examples" / "resnet50.txt"
    command = [sys.executable, "-X", "importtime", "-m", "slurm_gpumem", "estimate", str(summary)]
    done = subprocess.run(
        [*command, "--batch-size", "128", "--gpu", "h200"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
    )
    loaded = set(re.findall(r"\| +([\w.]+)$", done.stderr, re.M))
    assert "slurm_gpumem.estimators.allocator.allocator" in loaded
    slow = {"hashlib", "subprocess"}
    if sys.version_info < (3, 14):  # from there on, argparse loads these
        slow |= {"dataclasses", "inspect"}
    assert not slow & loaded


SLURM_PROGRAMS = {
    "sacct", "sacctmgr", "salloc", "sbatch", "scancel", "scontrol", "sdiag", "sinfo", "sprio", "squeue",
    "srun", "sstat",
}  # fmt: skip
MAY_RUN_SLURM = {"slurm", "devcluster"}
"""The rooms that run Slurm programs: the one for it, and the dev cluster in its own environment."""


def _commands_named(path: Path) -> set[str]:
    """Slurm programs that stand where a command does: first in a list or tuple, or first in a call."""
    found: set[str] = set()
    source = path.read_text()
    if not any(name in source for name in SLURM_PROGRAMS):
        return found
    for node in ast.walk(ast.parse(source)):
        words: list[ast.expr] = []
        if isinstance(node, (ast.List, ast.Tuple)):
            words = node.elts
        elif isinstance(node, ast.Call):
            words = node.args
        if words and isinstance(words[0], ast.Constant) and words[0].value in SLURM_PROGRAMS:
            found.add(f"{words[0].value} (line {node.lineno})")
    return found


def test_only_the_room_for_slurm_names_its_commands() -> None:
    named = {
        str(path.relative_to(PACKAGE)): found
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in MAY_RUN_SLURM and (found := _commands_named(path))
    }
    assert not named


def test_the_search_for_commands_finds_them(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text('run(["squeue", "-h"])\nself._tell("scancel", name)\nprint("sbatch refused")\n')
    assert _commands_named(path) == {"squeue (line 1)", "scancel (line 2)"}
