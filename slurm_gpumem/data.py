"""Where the files that travel with the package are."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
FOLDERS = ("~/.local/share/gpumem", "/usr/local/share/gpumem", "/usr/share/gpumem")
"""Where optional files that are too large for the package may lie."""
LUA_FILES = ("gpumem.lua", "gpumem_gpus.lua", "gpumem_line.lua", "gpumem_read.lua", "gpumem_request.lua")
"""What a site's job_submit.lua loads, apart from the site's own table."""


def package_folder(name: str) -> str:
    """A folder of the package."""
    return str(_PACKAGE / name)


def data_path(folder: str, name: str) -> Path:
    """The path of `models/gpus.toml`, `lua/gpumem.lua` and the like; in a checkout, links lead there."""
    return _PACKAGE / folder / name
