"""The learned correction as a file: small trees in JSON, executed in plain Python.

    {"format": "gpumem-correction/3", "features": [names], "center": ensemble, "spread": ensemble,
     "card": {...}}

The spread's last feature is how far the centre moves the job.

An ensemble is {"start": number, "trees": [tree, ...]}; a tree is a number (a leaf) or
[feature, threshold, tree if value <= threshold, tree otherwise]; its answer is the sum over the trees.
"""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Mapping, Sequence, Tuple, Union

from slurm_gpumem.errors import ConfigError

FORMAT = "gpumem-correction/3"
SIZE_CAP = 4 << 20
"""Bytes; the real file has a twentieth of it."""
_DEPTH_CAP = 12
_LIMIT = 1e12

Tree = Union[float, Sequence[Any]]


@dataclass(frozen=True)
class Ensemble:
    """A sum of trees."""

    start: float
    trees: Tuple[Tree, ...]

    def predict(self, values: Sequence[float]) -> float:
        """Its answer for one job's features."""
        total = self.start
        for node in self.trees:
            while isinstance(node, list):
                node = node[2] if values[node[0]] <= node[1] else node[3]
            total += node  # type: ignore[operator]  # not a list: a leaf
        return total


@dataclass(frozen=True)
class Correction:
    """A checked file."""

    center: Ensemble
    """log(real / structural)."""
    spread: Ensemble
    """log of how far from the centre such jobs usually are."""
    card: Mapping[str, Any]


def load(path: Path, names: Sequence[str]) -> Correction:
    """Read and check one correction; ConfigError says what is wrong with the file."""
    return from_json(read_json(path), str(path), names)


def read_json(path: Path) -> Any:
    """The JSON of a file of at most SIZE_CAP bytes (also when unpacked)."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            text = file.read(SIZE_CAP + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path}: cannot be read: {error}; `make fit` writes it") from None
    if len(text) > SIZE_CAP:
        raise ConfigError(f"{path}: larger than {SIZE_CAP} bytes, so it is no correction")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not JSON: {error}") from None


def from_json(content: Any, where: str, names: Sequence[str]) -> Correction:
    """Check what a file says, number by number; `names` are the features it must have been fitted on."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ConfigError(f"{where}: is not a correction of format {FORMAT}; `make fit` writes one")
    if content.get("features") != list(names):
        raise ConfigError(f"{where}: was fitted on other features than this version has; run `make fit`")
    try:
        center = _ensemble(content["center"], len(names))
        spread = _ensemble(content["spread"], len(names) + 1)
        return Correction(center, spread, dict(content.get("card", {})))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{where}: is damaged ({error}); `make fit` writes it again") from None


def _ensemble(content: Any, features: int) -> Ensemble:
    trees = content["trees"]
    level = list(trees)
    # Level by level over all trees at once: this runs at every submission.
    for _ in range(_DEPTH_CAP):
        nodes = [node for node in level if type(node) is list]
        check_numbers([node for node in level if type(node) is not list])
        if not nodes:
            return Ensemble(usable_number(content["start"]), tuple(trees))
        if {len(node) for node in nodes} != {4}:
            raise ValueError("a node has four members")
        used = {node[0] for node in nodes}
        if any(type(feature) is not int or not 0 <= feature < features for feature in used):
            raise ValueError("a node asks for a feature that there is not")
        check_numbers([node[1] for node in nodes])
        level = [node[2] for node in nodes] + [node[3] for node in nodes]
    raise ValueError("a tree is too deep")


def check_numbers(values: Sequence[Any]) -> None:
    """ValueError unless all are numbers that a tree can be made of."""
    if not {type(value) for value in values} <= {int, float}:
        raise ValueError("something in a tree is not a number")
    # A NaN or an infinity makes the sum one; min and max would pass over a NaN.
    if values and not (isfinite(sum(values)) and min(values) >= -_LIMIT and max(values) <= _LIMIT):
        raise ValueError("a number in a tree is not usable")


def usable_number(value: Any) -> float:
    """The value as a float; ValueError where it is no usable number."""
    if type(value) not in (int, float) or not isfinite(value) or abs(value) > _LIMIT:
        raise ValueError(f"{value!r} is not a usable number")
    return float(value)
