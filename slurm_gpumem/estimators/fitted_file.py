"""Reading files of fitted numbers (margins, similar models, utilization) with checks of what they hold."""

from __future__ import annotations

import json
import os
from math import isfinite
from typing import Any, Sequence, Union

from slurm_gpumem.errors import ConfigError

SIZE_CAP = 4 << 20
"""Bytes; the largest file has a sixth of it."""
_LIMIT = 1e12


def read_json(path: Union[str, os.PathLike[str]]) -> Any:
    """The JSON of a file of at most SIZE_CAP bytes."""
    try:
        with open(path, "rb") as file:
            text = file.read(SIZE_CAP + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error}; `make fit` writes it") from None
    if len(text) > SIZE_CAP:
        raise ConfigError(f"{path}: larger than {SIZE_CAP} bytes, so it is no file of fitted numbers")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not JSON: {error}") from None


def check_numbers(values: Sequence[Any]) -> None:
    """ValueError unless all are usable numbers."""
    if not {type(value) for value in values} <= {int, float}:
        raise ValueError("something is not a number")
    # A NaN or an infinity makes the sum one; min and max would pass over a NaN.
    if values and not (isfinite(sum(values)) and min(values) >= -_LIMIT and max(values) <= _LIMIT):
        raise ValueError("a number is not usable")


def usable_number(value: Any) -> float:
    """The value as a float; ValueError where it is no usable number."""
    if type(value) not in (int, float) or not isfinite(value) or abs(value) > _LIMIT:
        raise ValueError(f"{value!r} is not a usable number")
    return float(value)
