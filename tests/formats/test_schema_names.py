"""A name of a format names one format."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import slurm_gpumem

PACKAGE = Path(slurm_gpumem.__file__).parent
NAME = re.compile(r"(gpumem(?:-[a-z]+)*)/[0-9]+:?")


def _defined_in(path: Path) -> set[str]:
    """The names of formats, without their versions, that stand alone as a text in a module."""
    texts = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
    return {match[1] for text in texts if isinstance(text, str) and (match := NAME.fullmatch(text))}


def test_no_two_modules_define_a_format_of_the_same_name() -> None:
    modules = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for name in _defined_in(path):
            modules[name].add(str(path.relative_to(PACKAGE)))
    assert {"gpumem", "gpumem-job", "gpumem-live", "gpumem-remembered", "gpumem-summary"} <= set(modules)
    assert not {name: found for name, found in modules.items() if len(found) > 1}
