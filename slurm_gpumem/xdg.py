"""Where a user's own files are, by the XDG base directory specification: settings, caches, state."""

from __future__ import annotations

import os


def config_path(*names: str) -> str:
    """Below ~/.config, or XDG_CONFIG_HOME."""
    return _below("XDG_CONFIG_HOME", "~/.config", names)


def cache_path(*names: str) -> str:
    """Below ~/.cache/gpumem, or XDG_CACHE_HOME's: what can be made again."""
    return _below("XDG_CACHE_HOME", "~/.cache", ("gpumem", *names))


def state_path(*names: str) -> str:
    """Below ~/.local/state, or XDG_STATE_HOME."""
    return _below("XDG_STATE_HOME", "~/.local/state", names)


def _below(variable: str, default: str, names: tuple[str, ...]) -> str:
    named = os.environ.get(variable, "")
    # A relative path is to be ignored: it would be another folder wherever one stands.
    return os.path.join(named if os.path.isabs(named) else os.path.expanduser(default), *names)
