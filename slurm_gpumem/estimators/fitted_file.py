"""Reading the package's files of fitted numbers (margins, similar models, utilization, interference)."""

from __future__ import annotations

import json
import os
from typing import Any, Callable, TypeVar, Union

from slurm_gpumem.errors import ConfigError

T = TypeVar("T")


def fitted(path: Union[str, os.PathLike[str]], form: str, make: Callable[[Any], T]) -> T:
    """What `make` takes from a file's JSON; ConfigError where it is missing, damaged or of another format."""
    try:
        with open(path, "rb") as file:
            content = json.load(file)
        if content["format"] != form:
            raise ValueError(f"its format is {content['format']!r}, not {form!r}")
        return make(content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: cannot be used: {error}; install slurm-gpumem again") from None
