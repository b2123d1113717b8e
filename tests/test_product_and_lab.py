"""Product and laboratory apart: no product module imports the lab, and the product reads only what ships."""

from __future__ import annotations

import ast
import configparser
from pathlib import Path
from typing import Dict, Iterator, Optional, Tuple

import slurm_gpumem

PACKAGE = Path(slurm_gpumem.__file__).parent
LAB = PACKAGE.parent / "lab"
PRODUCT = sorted(PACKAGE.rglob("*.py"))
ASKS_WHERE_IT_IS = {
    "node/sampler/__main__.py": "the package's own file, which an upgrade replaces",
    "site/calibration_context.py": "the package's root, for a child's import path",
    "data.py": "the files that ship",
    "devcluster/cluster.py": "modules of its own, copied for jobs",
    "devcluster/demo.py": "docs/examples: the demo runs in a checkout, and says so elsewhere",
    "devcluster/installation.py": "a module of its own, copied into a tree",
    "injected/gpumem_trace.py": "files of the user's modules",
    "injected/sitecustomize.py": "its own folder, to find the user's file of that name",
    "submission/job_trace/cache.py": "the tracer's files, since another tracer must trace again",
    "submission/job_trace/stub.py": "the package's root, since it is started by path",
    "submission/job_trace/stubs.py": "a program of its own, for the traced script",
    "submission/job_trace/trace_job.py": "the package's root, for the trace job's import path",
    "report/html/page.py": "its assets, which ship",
    "site/doctor/probe_host.py": "the package of the hooks' interpreter, whose files only root may change",
    "tracing/guard/start.py": "the package's root, since it is started by path",
    "tracing/own_code.py": "the package's root, to tell its frames from the user's",
    "tracing/model/load.py": "files of the user's modules",
    "tracing/follow/evaluations.py": "files of the user's modules",
    "tracing/engine/value_dependent_code.py": "the package's root, to tell its frames from others",
    "tracing/script/run.py": "the package's root and its own programs, for the traced command",
}


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _mentions(tree: ast.AST) -> Iterator[str]:
    """Modules that are imported, anywhere in the file, and strings that could name one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            yield node.value


def test_no_product_module_imports_the_lab() -> None:
    named = {
        _name(path)
        for path in PRODUCT
        if "lab" in path.read_text()
        and any(name.split(".")[0] == "lab" for name in _mentions(ast.parse(path.read_text())))
    }
    assert not named


_READS = ("data_path", "data_file")
"""Functions that name a file of the package."""


def _shipped() -> Dict[str, Path]:
    """Data files of the wheel by their path in the package."""
    config = configparser.ConfigParser()
    config.read(PACKAGE.parent / "setup.cfg")
    patterns = config["options.package_data"]["slurm_gpumem"].split()
    return {_name(path): path for pattern in patterns for path in PACKAGE.glob(pattern)}


def _data_files(tree: ast.Module) -> Iterator[Tuple[str, Optional[str]]]:
    """(folder, name) of every call of data_path or data_file; the name is None where it is computed."""
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _READS:
            folder, name = node.args
            assert isinstance(folder, ast.Constant)
            if isinstance(name, ast.Constant):
                yield folder.value, name.value
            else:
                yield folder.value, constants.get(name.id) if isinstance(name, ast.Name) else None


def test_the_product_reads_only_files_that_ship() -> None:
    shipped = _shipped()
    reading = [
        path
        for path in PRODUCT
        if any(f"{name}(" in path.read_text() for name in _READS) and path.name != "data.py"
    ]
    assert reading
    for path in reading:
        for folder, name in _data_files(ast.parse(path.read_text())):
            assert _ships(folder, name, shipped), f"{_name(path)}: {folder}/{name}"


def _ships(folder: str, name: Optional[str], shipped: Dict[str, Path]) -> bool:
    if name is None:
        # Every file of these folders ships, of docs every page.
        return folder in ("docs", "lua", "prolog")
    if (PACKAGE / folder / name).is_dir():
        return any(path.startswith(f"{folder}/{name}/") for path in shipped)
    return f"{folder}/{name}" in shipped


def test_every_file_of_these_folders_ships() -> None:
    files = {
        _name(path)
        for folder in ("lua", "prolog", "models/environments")
        for path in (PACKAGE / folder).iterdir()
        if path.suffix != ".md"
    }
    pages = {_name(path) for path in PACKAGE.joinpath("docs").glob("**/*.md")}
    assert pages
    assert files | pages <= set(_shipped())


def test_only_these_modules_look_for_files_around_them() -> None:
    asking = {_name(path) for path in PRODUCT if "__file__" in path.read_text()}
    assert asking == set(ASKS_WHERE_IT_IS)


def test_all_of_models_ships_but_the_cards() -> None:
    files = [path for path in (PACKAGE.parent / "models").rglob("*") if path.is_file()]
    data = {path.relative_to(PACKAGE.parent).as_posix() for path in files if path.suffix != ".md"}
    assert data == {name for name in _shipped() if name.startswith("models/")}
    # Workspaces take 4 MB, known models 4 MB, relatives and class names 1 MB: plain, to be read quickly.
    sizes = {name: path.stat().st_size for name, path in _shipped().items()}
    assert sum(size for name, size in sizes.items() if name.startswith("models/")) < 9_500_000
    assert sum(sizes.values()) < 10_200_000


def _imported(tree: ast.AST) -> Iterator[Tuple[str, str]]:
    """(module, name) of everything that is imported from the package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("slurm_gpumem."):
            yield from ((str(node.module), alias.name) for alias in node.names)


def test_no_function_of_the_product_is_there_for_the_lab_alone() -> None:
    trees = {path: ast.parse(path.read_text()) for path in PRODUCT}
    used = {pair for tree in trees.values() for pair in _imported(tree)}
    attributes = {
        node.attr for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.Attribute)
    }
    for path in LAB.rglob("*.py"):
        for module, name in set(_imported(ast.parse(path.read_text()))) - used:
            tree = trees.get(
                PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py"), ast.Module([], [])
            )
            defined = [node for node in tree.body if getattr(node, "name", "") == name]
            at_home = any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))
            assert not defined or at_home or name in attributes, f"only the lab uses {module}.{name}"
