"""No two modules import each other, neither at the top nor lazily nor for types only."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Dict, List, Set

import slurm_gpumem

PACKAGE = Path(slurm_gpumem.__file__).parent
LAB = PACKAGE.parent / "lab"


def _graph() -> Dict[str, Set[str]]:
    paths = {_name(path): path for folder in (PACKAGE, LAB) for path in folder.rglob("*.py")}
    return {name: _imports(path, set(paths)) - {name} for name, path in paths.items()}


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path: Path, modules: Set[str]) -> Set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}": node.module for alias in node.names}
            found |= {name if name in modules else module for name, module in names.items()}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & modules


def _reached(graph: Dict[str, Set[str]], start: str) -> Set[str]:
    seen: Set[str] = set()
    todo: List[str] = [start]
    while todo:
        for name in graph[todo.pop()] - seen:
            seen.add(name)
            todo.append(name)
    return seen


def test_no_modules_import_each_other() -> None:
    graph = _graph()
    reached = {name: _reached(graph, name) for name in graph}
    circles = {
        frozenset(other.partition(".")[2] for other in reached[name] if name in reached[other])
        for name in graph
        if name in reached[name]
    }
    assert sorted(map(sorted, circles)) == []
