"""Write models/known-classes.txt: the classes whose forward is known, and what stands below each of them.

    python -m lab.catalogue.known_classes torchvision=DIR timm=DIR transformers=DIR

Names come from two sources: the texts of measured library models, which show what stands below a class, and
the libraries' own sources (DIR: a folder that holds the package), where the names that a class calls in its
`__init__` say the same for classes that were never measured. Nothing of a library is executed.
"""

from __future__ import annotations

import ast
import sys
from functools import lru_cache
from pathlib import Path
from typing import Dict, FrozenSet, Iterator, List, Optional, Set

from lab.command import exit_code
from lab.ground_truth import load_ground_truth, summary_of
from lab.places import MODELS
from slurm_gpumem.errors import GpumemError, UsageError
from slurm_gpumem.estimators.corrected.custom_forward import FILE, FORMAT, inner_kinds

LIBRARIES = ("torchvision", "timm", "transformers")
_TEXTS = ("torchinfo_full", "torchinfo_deep", "print")
_MODULE = "Module"
_NOT_MODELS = ("test", "tests", "scripts", "utils", "data")
_NOT_FOLLOWED = ("DiffParallelScalingBlock", "GPSA", "ParallelScalingBlock", "VisionTransformerSAM")
"""Classes whose forward keeps more than their layers show, and which no rule follows."""


def from_texts() -> Dict[str, Set[str]]:
    """Class → classes below it, in the texts of measured library models."""
    truth = load_ground_truth()
    known: Dict[str, Set[str]] = {}
    libraries = {run.summary for run in truth.runs if run.row["source"] in LIBRARIES}
    for key in sorted(libraries):
        text = next((truth.texts[key][tool] for tool in _TEXTS if tool in truth.texts[key]), None)
        if text is None:
            continue
        try:
            summary = summary_of(text)
        except GpumemError:
            continue  # `make accuracy` counts and names these
        for layer, inside in inner_kinds(summary):
            known.setdefault(layer.kind, set()).update(inside)
    return known


def from_source(folder: Path) -> Dict[str, Set[str]]:
    """The same from a package's files: the classes that are modules, with what each one's __init__ names."""
    bases: Dict[str, Set[str]] = {}
    named: Dict[str, Set[str]] = {}
    for node in _classes(folder):
        bases.setdefault(node.name, set()).update(_last_name(base) for base in node.bases)
        named.setdefault(node.name, set()).update(_called(node))
    known: Dict[str, Set[str]] = {}
    for name in bases:
        above = _ancestors(name, bases)
        if _MODULE in above or any(base.endswith(("PreTrainedModel", _MODULE)) for base in above):
            known[name] = {word for base in (name, *above) for word in named.get(base, ())}
    modules = set(known)
    # Only names of classes matter: functions and configurations that __init__ calls stand in no text.
    names = modules | torch_classes()
    return {name: words & names for name, words in known.items()}


def _classes(folder: Path) -> Iterator[ast.ClassDef]:
    for path in sorted(folder.rglob("*.py")):
        if not any(part in _NOT_MODELS for part in path.relative_to(folder).parts):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    yield node


def _called(node: ast.ClassDef) -> Iterator[str]:
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            for inner in ast.walk(item):
                if isinstance(inner, (ast.Name, ast.Attribute)):
                    yield _last_name(inner)


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _ancestors(name: str, bases: Dict[str, Set[str]]) -> Set[str]:
    found: Set[str] = set()
    queue = [name]
    while queue:
        for base in bases.get(queue.pop(), ()):
            if base not in found:
                found.add(base)
                queue.append(base)
    return found - {name}


@lru_cache(maxsize=1)
def torch_classes() -> FrozenSet[str]:
    """Every module that torch.nn defines."""
    from torch import nn

    found = set()
    for name in nn.modules.__dict__:
        for word, kind in vars(getattr(nn.modules, name)).items() if not name.startswith("_") else ():
            if isinstance(kind, type) and issubclass(kind, nn.Module) and not word.startswith("_"):
                found.add(word)
    return frozenset(found - {_MODULE})


def content(folders: Dict[str, Path]) -> str:
    """The file."""
    from torch import nn

    measured = from_texts()
    below: Dict[str, Set[str]] = {}
    for folder in (Path(nn.__file__).parent, *(folders[library] for library in LIBRARIES)):
        for name, inside in from_source(folder).items():
            below.setdefault(name, set()).update(inside)
    for name, inside in measured.items():
        below.setdefault(name, set()).update(inside)
    torch = torch_classes()
    lines = [FORMAT.decode().strip()]
    for name in sorted({*below, *torch}.difference(_NOT_FOLLOWED)):
        marks = "t" if name in torch else "m" if name in measured else "-"
        lines.append(" ".join([name, marks, *sorted(below.get(name, ()))]))
    return "\n".join(lines) + "\n"


def main(argv: Optional[List[str]] = None) -> int:
    """Write it."""
    words = sys.argv[1:] if argv is None else argv
    folders = {name: Path(folder) for name, _, folder in (word.partition("=") for word in words)}
    return exit_code(lambda: _write(folders))


def _write(folders: Dict[str, Path]) -> int:
    missing = [name for name in LIBRARIES if name not in folders]
    if missing:
        raise UsageError(f"say where the sources are: {' '.join(f'{name}=DIR' for name in missing)}")
    (MODELS / FILE).write_text(content(folders))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
