"""Build networks of public repositories, which are named here and never copied into this one.

An entry says "OWNER/NAME@COMMIT:package.module.Class". The folder in $GPUMEM_REPOSITORIES holds each
repository at that commit as OWNER+NAME. A table among the arguments becomes an object with those attributes,
as `argparse` makes them; with "class" in it, an instance of that class of the same module, or a dict where
that is "dict". The text "none" is None.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Mapping

from torch import nn

from slurm_gpumem.errors import ConfigError

FOLDER = "GPUMEM_REPOSITORIES"


def build_from_repository(build: str, args: Mapping[str, Any]) -> nn.Module:
    """The class that `build` names, with these arguments."""
    repository, _, path = build.partition(":")
    name, _, attribute = path.rpartition(".")
    module = _load(_folder(repository.partition("@")[0]), name)
    model: nn.Module = getattr(module, attribute)(
        **{key: _argument(module, value) for key, value in args.items()}
    )
    return model


def _folder(repository: str) -> Path:
    if not os.environ.get(FOLDER):
        raise ConfigError(f"{FOLDER} is not set: it names the folder that holds {repository}")
    folder = Path(os.environ[FOLDER]).resolve() / repository.replace("/", "+")
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; put {repository} there")
    return folder


def _load(root: Path, name: str) -> ModuleType:
    """The module, with names such as `models` and `utils` free of what another repository made of them."""
    for known, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [])), "")
        if str(root.parent) in str(file) and not str(file).startswith(f"{root}{os.sep}"):
            del sys.modules[known]
    packages = name.split(".")[:-1]
    # The deepest folder first, as if the file were run there; then those above it.
    folders = [root.joinpath(*packages[:count]) for count in range(len(packages), 0, -1)]
    places = [str(folder) for folder in (root, *folders)]
    sys.path[:] = places + [path for path in sys.path if not path.startswith(str(root.parent))]
    for count in range(1, len(packages) + 1):
        # Packages that import everything they have want libraries that the one network does not need.
        parent = ModuleType(".".join(packages[:count]))
        parent.__path__ = [str(root.joinpath(*packages[:count]))]
        sys.modules.setdefault(parent.__name__, parent)
    return importlib.import_module(name)


def _argument(module: ModuleType, value: Any) -> Any:
    if isinstance(value, list):  # TOML has no tuples, and code asks for them more often than for lists
        return tuple(_argument(module, one) for one in value)
    if not isinstance(value, Mapping):
        return None if value == "none" else value
    # Lists inside tables stay lists: configuration files have those.
    named = {
        key: _argument(module, one) if not isinstance(one, list) else one
        for key, one in value.items()
        if key != "class"
    }
    kind = value.get("class")
    if kind == "dict":
        return named
    return getattr(module, kind)(**named) if kind else SimpleNamespace(**named)
