"""Turn what goes wrong in one of this folder's commands into a message and an exit code."""

from __future__ import annotations

import importlib
from typing import Callable, Iterable

from slurm_gpumem.errors import UsageError
from slurm_gpumem.terminal.say import run_command


def require(*libraries: str) -> None:
    """Raise ModuleNotFoundError for a missing library now, not after minutes of reading data."""
    for name in libraries:
        importlib.import_module(name)


def exit_code(body: Callable[[], int]) -> int:
    """`body`'s exit code; an error of the input's and a missing library become one message on stderr."""

    def with_libraries() -> int:
        try:
            return body()
        except ModuleNotFoundError as error:
            if str(error.name).split(".")[0] in ("lab", "slurm_gpumem"):
                raise
            raise UsageError(f"{error.name} is not installed: pip install -e '.[train]'") from error

    return run_command(with_libraries)


def print_lines(make: Callable[[], Iterable[str]]) -> int:
    """Print what `make` gives; the exit code of the command."""

    def body() -> int:
        print("\n".join(make()))
        return 0

    return exit_code(body)
