"""Find the callable a target names and call it. In the traced process."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, List, Mapping, Tuple

from slurm_gpumem.errors import TargetError
from slurm_gpumem.tracing.model import outline
from slurm_gpumem.tracing.model.spec import FILE, Target
from slurm_gpumem.tracing.own_code import is_users


def find_callable(target: Target) -> Tuple[Any, str]:
    """What the target names and its full label; the module that contains it is imported."""
    if target.kind == FILE:
        path = Path(target.place)
        attribute = target.attribute or outline.choose(path, path.name)
        label = f"{path.name}:{attribute}"
        outline.outline(path)  # a syntax error is reported before anything runs
        module = _import_file(path)
        return _attribute(module, attribute, path.name, path), label
    module = _import_module(target.place)
    if not target.attribute:
        file = getattr(module, "__file__", None)
        if not file or not file.endswith(".py"):
            raise TargetError(f"{target.place}: which function builds the model? Write {target.place}:NAME")
        attribute = outline.choose(Path(file), target.place)
    else:
        attribute = target.attribute
    file = getattr(module, "__file__", None)
    path = Path(file) if file and file.endswith(".py") else Path()
    return _attribute(module, attribute, target.place, path), f"{target.place}:{attribute}"


def call(function: Any, label: str, arguments: Mapping[str, Any], *positional: Any) -> Any:
    """Call it with the given arguments; TargetError names those that are missing or unknown."""
    if not callable(function):
        return function
    signature = _signature(function)
    if signature is not None:
        _check_arguments(signature, label, arguments, len(positional))
    return function(*positional, **arguments)


def _signature(function: Any) -> Any:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None  # built in: calling it will show


def _check_arguments(
    signature: inspect.Signature, label: str, arguments: Mapping[str, Any], positional: int
) -> None:
    parameters = list(signature.parameters.values())[positional:]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    unknown = [name for name in arguments if name not in names]
    if unknown and not takes_any:
        takes = f"it takes: {', '.join(names)}" if names else "it takes none"
        raise TargetError(f"{label} has no argument {unknown[0]!r} (--set {unknown[0]}=...); {takes}")
    needed = [
        p.name
        for p in parameters
        if p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        and p.name not in arguments
    ]
    if needed:
        raise outline.needs_arguments(label, needed)


def as_many_as_it_takes(function: Any, *offered: Any) -> List[Any]:
    """As many of `offered`, from the first on, as the function has parameters."""
    signature = _signature(function)
    if signature is None:
        return list(offered)
    places = 0
    for p in signature.parameters.values():
        if p.kind is p.VAR_POSITIONAL:
            return list(offered)
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            places += 1
    return list(offered[:places])


def _attribute(module: ModuleType, attribute: str, label: str, path: Path) -> Any:
    found: Any = module
    for word in attribute.split("."):
        try:
            found = getattr(found, word)
        except AttributeError:
            if found is module and path.is_file():
                raise outline.missing(path, attribute, label) from None
            import difflib

            near = difflib.get_close_matches(word, dir(found), n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TargetError(f"{label} has no {attribute!r}{hint}") from None
    return found


def _import_file(path: Path) -> ModuleType:
    """Run the file as `import` would: under its own name (not __main__), its directory first on the path."""
    root, dotted = _package_of(path)
    sys.path.insert(0, str(root))
    sys.argv = [str(path)]
    if dotted.count("."):
        return importlib.import_module(dotted)
    name = dotted if dotted.isidentifier() and dotted not in _taken() else f"gpumem_target_{abs(hash(path))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{path.name}: is not a Python file")
    if name in sys.modules:
        return sys.modules[name]
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _taken() -> Dict[str, Any]:
    """Names of modules that are already loaded and did not come from a target."""
    return {
        n: m
        for n, m in sys.modules.items()
        if not getattr(m, "__file__", None) or not is_users(str(m.__file__))
    }


def _package_of(path: Path) -> Tuple[Path, str]:
    """The directory to import from and the module's dotted name: a file of a package keeps its package."""
    names = [path.stem]
    folder = path.parent
    while (folder / "__init__.py").exists() and folder.name.isidentifier() and folder != folder.parent:
        names.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(names)


def _import_module(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    sys.argv = [name]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # The module itself or a package above it; failed imports inside it are not our concern.
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            import difflib

            files = [p.stem for p in Path().glob("*.py")]
            near = difflib.get_close_matches(name, files, n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]}.py?" if near else ""
            raise TargetError(
                f"no module {error.name!r} here{hint}\n"
                f"A file is named like train.py:build_model; a module must be importable from {os.getcwd()}."
            ) from None
        raise
