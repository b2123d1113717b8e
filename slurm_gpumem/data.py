"""Where the files that travel with the package are, and those of fitted numbers read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, TypeVar, Union

from slurm_gpumem.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


_PACKAGE = os.path.dirname(os.path.realpath(__file__))
FOLDERS = ("~/.local/share/gpumem", "/usr/local/share/gpumem", "/usr/share/gpumem")
"""Where optional files that are too large for the package may lie."""
LUA_FILES = ("gpumem.lua", "gpumem_gpus.lua", "gpumem_read.lua", "gpumem_request.lua")
"""What a site's job_submit.lua loads, apart from the site's own table."""
FILTER_FILES = ("cli_filter.lua", "gpumem_filter.lua")
HOOKS_FOLDER = "/etc/slurm/gpumem"
HOOKS_CONF = "gpumem/hooks.conf"
"""Beside slurm.conf, else in HOOKS_FOLDER: the Python of hooks and filter, and the site's own hooks."""


def hooks_conf(folder: Union[str, os.PathLike[str]]) -> str:
    """The one that counts beside this slurm.conf; lua/gpumem_filter.lua looks in the same order."""
    beside = os.path.join(folder, HOOKS_CONF)
    return beside if os.path.exists(beside) else os.path.join(HOOKS_FOLDER, "hooks.conf")


def package_folder(name: str) -> str:
    """A folder of the package."""
    return os.path.join(_PACKAGE, name)


def data_file(folder: str, name: str) -> str:
    """The path of `models/gpus.toml`, `lua/gpumem.lua` and the like; in a checkout, links lead there."""
    return os.path.join(_PACKAGE, folder, name)


def data_path(folder: str, name: str) -> Path:
    """The same as an object; pathlib takes a third of the interpreter's own start to load."""
    from pathlib import Path

    return Path(data_file(folder, name))


T = TypeVar("T")


def fitted(path: Union[str, os.PathLike[str]], form: str, make: Callable[[Any], T]) -> T:
    """What `make` takes from a file's JSON; ConfigError where it is missing, damaged or of another format."""
    import json

    try:
        with open(path, "rb") as file:
            content = json.load(file)
        if content["format"] != form:
            raise ValueError(f"its format is {content['format']!r}, not {form!r}")
        return make(content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: cannot be used: {error}; install slurm-gpumem again") from None
