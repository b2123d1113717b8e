"""A script's own code: which files it is, and the `range` and `enumerate` that it sees.

Packages lie in site-packages, in folders of `pip install --target`, and below roots of environment modules.
Loaded by its path at the start of every traced Python: standard library only.
"""

import builtins
import os
import re
import sys
import sysconfig
from functools import cache
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any, Optional, Tuple

OF_TQDM = ("tqdm.std", "tqdm.auto", "tqdm.asyncio")
"""Modules whose `trange` makes the ranges of scripts' loops."""
OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_ROOT = "(?:.*_)?(?:ROOT|HOME|DIR|BASE|PREFIX)"
_STARTED_IN = os.getcwd()
_own = ModuleType("builtins")
"""Python's own names, but for those in `of_script`."""


def begin() -> None:
    """Before the script: its modules get builtins of their own; nothing is added to their names."""
    vars(_own).update(vars(builtins))
    builtins.__class__ = _Builtins
    vars(sys.modules["__main__"])["__builtins__"] = _own
    real: Any = SourceFileLoader.exec_module

    def exec_module(self: Any, module: Any) -> None:
        if is_users(self.path) or self.name in OF_TQDM:
            vars(module)["__builtins__"] = vars(_own)
        real(self, module)

    SourceFileLoader.exec_module = exec_module  # type: ignore[method-assign]


def give(**names: Any) -> None:
    """What these names are to the script's own code from now on."""
    vars(_own).update(names)


class _Builtins(ModuleType):
    """Python's own: what a script puts there, its own code sees."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        vars(_own)[name] = value

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        vars(_own).pop(name, None)


@cache
def is_users(path: str) -> bool:
    """Whether a file is the user's own: not ours, not a package's, not Python's."""
    if not path or path.startswith(("<", OURS, STANDARD)) or _INSTALLED.search(path):
        return False
    return not path.startswith(tuple(folder + os.sep for folder in package_folders()))


def package_folders() -> Tuple[str, ...]:
    """Folders of packages that Python looks into now, besides its own site-packages."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return _package_folders(tuple(sys.path), main)


@cache
def _package_folders(paths: Tuple[str, ...], main: Optional[str]) -> Tuple[str, ...]:
    own = {_STARTED_IN, os.path.dirname(os.path.abspath(main or "."))}
    targets = {os.path.abspath(path) for path in paths if _has_installed(path)} - own
    roots = {root for root in _module_roots() if not any(is_below(folder, root) for folder in own)}
    return tuple(sorted(targets | roots))


def _has_installed(folder: str) -> bool:
    """Whether pip has put packages into it."""
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder or os.curdir))
    except OSError:
        return False


def _module_roots() -> Tuple[str, ...]:
    """Of environment modules that are loaded: EasyBuild's EBROOT..., else NAME_ROOT, NAME_HOME ..."""
    loaded = (name.partition("/")[0] for name in os.environ.get("LOADEDMODULES", "").split(":"))
    names = "|".join(re.escape(re.sub(r"\W", "_", name)) for name in loaded if name)
    named = re.compile(rf"EBROOT.+|(?:{names})_?{_ROOT}" if names else "EBROOT.+", re.IGNORECASE)
    found = (value.rstrip("/") for name, value in os.environ.items() if named.fullmatch(name))
    return tuple(value for value in found if os.path.isabs(value))


def is_below(path: str, folder: str) -> bool:
    """Whether a path is a folder, or in it."""
    return (path + os.sep).startswith(folder + os.sep)
