"""What a Python file offers, read without running it: to choose a callable, or to list the available ones."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, List, Optional, Sequence, Set, Tuple

from slurm_gpumem.errors import TargetError

_MODEL_BASES = ("Module", "LightningModule", "PreTrainedModel", "Sequential")
_USUAL_NAMES = ("build_model", "make_model", "create_model", "get_model", "build", "model", "net")
_SHOWN = 8
_MAKES_NAMES = ("globals", "exec", "setattr", "locals", "vars")


@dataclass(frozen=True)
class Callable:
    """A function, class or variable at the top level of a file."""

    name: str
    line: int
    model: bool
    """Whether it is a model class, judging by its bases."""
    needs: Tuple[str, ...] = ()
    """Arguments without a default."""
    sure: bool = True
    """Whether it is called as written: not decorated, and no base class changes its arguments."""

    @property
    def signature(self) -> str:
        """For people: "build_model(cfg)"."""
        return f"{self.name}({', '.join(self.needs)})"


def outline(path: Path) -> List[Callable]:
    """The callables at the top level of the file; TargetError if it is not Python."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        raise TargetError(f"{path.name}, line {error.lineno}: not valid Python: {error.msg}") from None
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise TargetError(f"{path.name}: cannot be read as Python: {error}") from None
    found: List[Callable] = []
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            plain = not node.decorator_list
            found.append(Callable(node.name, node.lineno, False, _needed(node.args), plain))
        elif isinstance(node, ast.ClassDef):
            init = next(
                (f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None
            )
            bases = {_last_name(base) for base in node.bases}
            model = bool(bases & set(_MODEL_BASES)) or any(c.model and c.name in bases for c in found)
            needs = _needed(init.args, 1) if init else ()
            found.append(Callable(node.name, node.lineno, model, needs, False))
    return found


def check(path: Path, attribute: str, given: Iterable[str]) -> None:
    """Report errors that are certain before anything runs: no such callable, or missing arguments."""
    callables = {c.name: c for c in outline(path)}
    first = attribute.partition(".")[0]
    if first and first not in callables:
        bound = _bound_names(path)
        if bound is not None and first not in bound:
            raise missing(path, attribute, path.name)
    named = callables.get(attribute)
    if named is not None and named.sure:
        needed = [name for name in named.needs if name not in set(given)]
        if needed:
            raise needs_arguments(f"{path.name}:{attribute}", needed)


def needs_arguments(label: str, needed: Sequence[str]) -> TargetError:
    """The error for a callable with missing arguments."""
    plain = " ".join(f"--set {name}=..." for name in needed)
    listed = " and ".join([", ".join(needed[:-1]), needed[-1]]) if len(needed) > 1 else needed[0]
    return TargetError(
        f"{label} needs {'arguments' if len(needed) > 1 else 'an argument'}: {listed}.\n"
        f"Give plain values with {plain},\n"
        "or name a function without arguments that calls it."
    )


def _bound_names(path: Path) -> Optional[Set[str]]:
    """Every name that the file may bind at its top level; None if it imports names by *."""
    names: Set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                if alias.name == "*":
                    return None
                names.add((alias.asname or alias.name).partition(".")[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _MAKES_NAMES:
            return None
    return names


def choose(path: Path, label: str) -> str:
    """The only callable that can be meant if none is named; otherwise TargetError lists the candidates."""
    callables = outline(path)
    names = {c.name: c for c in callables}
    usual = [names[name] for name in _USUAL_NAMES if name in names and not names[name].needs]
    if usual:
        return usual[0].name
    models = [c for c in callables if c.model]
    # The last class of a file usually is the whole model, but that is a guess: only a single one is certain.
    if len(models) == 1 and not models[0].needs:
        return models[0].name
    raise TargetError(
        f"{label}: which function or class builds the model?\n{_offer(label, callables)}\n"
        f"If it is a whole training script, trace that: gpumem trace -- python {label}"
    )


def missing(path: Path, attribute: str, label: str) -> TargetError:
    """The error for a callable that is not in the file, with the most similar name."""
    import difflib

    callables = outline(path)
    names = [c.name for c in callables]
    near = difflib.get_close_matches(attribute, names, n=1, cutoff=0.6)
    hint = f"did you mean {label}:{near[0]}?" if near else _offer(label, callables)
    return TargetError(f"{label} has no {attribute!r}.\n{hint[0].upper()}{hint[1:]}")


def _offer(label: str, callables: List[Callable]) -> str:
    public = [c for c in callables if not c.name.startswith("_")]
    if not public:
        return f"{label} defines no function and no class; write one that returns the model"
    shown = sorted(public, key=lambda c: not c.model)[:_SHOWN]
    more = ", ..." if len(public) > _SHOWN else ""
    listed = ", ".join(c.signature for c in shown)
    return f"it has: {listed}{more}. Name one like {label}:{shown[0].name}"


def _needed(arguments: ast.arguments, skip: int = 0) -> Tuple[str, ...]:
    names = [a.arg for a in [*arguments.posonlyargs, *arguments.args]]
    without = names[skip : len(names) - len(arguments.defaults)]
    keyword = [a.arg for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults) if d is None]
    return (*without, *keyword)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
