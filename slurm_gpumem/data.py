"""Where the files that travel with the package are: beside it in a checkout, inside it when installed."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_path(folder: str, name: str) -> Path:
    """The path of `models/gpus.toml`, `lua/gpumem.lua` and the like."""
    installed = _PACKAGE / folder / name
    return installed if installed.exists() else _PACKAGE.parent / folder / name
