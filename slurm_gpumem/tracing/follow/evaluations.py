"""Evaluations that a script's code has and that a trace did not come to: they may take larger batches."""

from __future__ import annotations

import ast
import os
import sys
from functools import lru_cache
from types import FrameType
from typing import Iterator, List, Optional, Set, Tuple, Union

from slurm_gpumem.tracing.engine.value_dependent_code import parsed
from slurm_gpumem.tracing.own_code import is_users
from slurm_gpumem.tracing.script.hints import LONGER, MEASURED

_WITHOUT_GRADIENTS = {"no_grad", "inference_mode"}
_TRAINS = {"backward", "step"}
_Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]


def running() -> Set[str]:
    """Names of the functions that are at work now, to be asked when a model is called without training."""
    found: Set[str] = set()
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        found.add(frame.f_code.co_name)
        frame = frame.f_back
    return found


def not_reached(seen: Set[str]) -> List[str]:
    """A warning for the first function of the script's own files that evaluates, if its code calls one.

    There is none if any such function was `seen` at work. A teacher that is part of every step is no
    evaluation, and runs in none.
    """
    files = _own_files()
    called = {name for path in files for name in _calls(path)}
    evaluations = [(path, name, line) for path in files for name, line in _evaluations(path)]
    if not seen & {name for _, name, _ in evaluations}:
        for path, name, line in evaluations:
            if name in called:
                where = f"{os.path.basename(path)}, line {line}, {name}"
                return [
                    f"{where} evaluates the model, and the trace did not come there: if its batches are "
                    f"larger than those of training, the job may need more. {LONGER}, or {MEASURED}"
                ]
    return []


def _own_files() -> List[str]:
    """Those that lie beside or below the script or the current directory, the script first."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    first = [os.path.abspath(main)] if isinstance(main, str) else []
    folders = {os.path.join(folder, "") for folder in (os.getcwd(), *map(os.path.dirname, first))}
    found = dict.fromkeys(first)
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py"):
            path = os.path.abspath(path)
            if path.startswith(tuple(folders)) and is_users(path):
                found[path] = None
    return list(found)


@lru_cache(maxsize=256)
def _evaluations(path: str) -> Tuple[Tuple[str, int], ...]:
    """Functions that put a model into evaluation, compute without gradients and do not train."""
    found = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names = set(_names(node))
            evaluates = any(_is_eval(part) for part in ast.walk(node))
            if evaluates and names & _WITHOUT_GRADIENTS and not names & _TRAINS:
                found.append((node.name, node.lineno))
    return tuple(found)


def _names(function: _Function) -> Iterator[str]:
    """Of all attributes and variables in it, decorators included."""
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id


def _is_eval(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "eval"
        and not node.args
    )


@lru_cache(maxsize=256)
def _calls(path: str) -> Set[str]:
    """Names of what the file's code calls."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call):
            function = node.func
            found.add(function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", ""))
    return found
