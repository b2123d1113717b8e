"""Turn what goes wrong in one of this folder's commands into a message and an exit code."""

from __future__ import annotations

import importlib
import sys
from typing import Callable

from slurm_gpumem.errors import GpumemError


def require(*libraries: str) -> None:
    """Raise ModuleNotFoundError for a missing library now, not after minutes of reading data."""
    for name in libraries:
        importlib.import_module(name)


def exit_code(body: Callable[[], int]) -> int:
    """`body`'s exit code; an error of the input's becomes one message on stderr."""
    try:
        return body()
    except GpumemError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        if str(error.name).split(".")[0] == "slurm_gpumem":
            raise
        print(f"{error.name} is not installed: pip install 'slurm-gpumem[train]'", file=sys.stderr)
        return 2
