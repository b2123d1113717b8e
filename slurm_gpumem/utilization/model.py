"""The fitted file: the roofline's coefficients, a line on top, intervals and ranges, in JSON.

    {"format": "gpumem-utilization/4", "features": [names],
     "sources": {"summary": {"coefficients": {name: number}, "middles": [number, ...],
     "scales": [number, ...], "targets": {target: {"start": number, "slopes": [number, ...],
     "bands": [[low, high], ...], "guessed_bands": [[low, high], ...]}},
     "ranges": [[low, high], ...], "host": [fast, slow], "sessions": {name: factor}, "lean": number},
     "trace": {...}},
     "coverage": share, "outside": factor, "card": {...}}

A slope is for a feature less its middle, in scales (at most STEEPEST of them). `host` are factors of the
CPU's time between which machines of one kind usually are (`sessions`: those of each day's measurements, for
people). A band is where the truth lies beside the answers
of a fast and of a slow one for `coverage` of jobs; there is one for each level of predicted SM activity
(LEVELS), and others where layers are guessed.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from slurm_gpumem.data import data_path
from slurm_gpumem.errors import ConfigError
from slurm_gpumem.estimators.fitted_file import usable_number
from slurm_gpumem.utilization import roofline
from slurm_gpumem.utilization.features import NAMES

FORMAT = "gpumem-utilization/4"
FILE = "utilization.json"
TARGETS = ("sm_active", "sm_occupancy", "dram_active", "step_seconds")
LEVELS = (0.3, 0.7)
"""Shares of SM activity between which jobs are predicted equally well: idle, half busy, busy."""
SIZE_CAP = 1 << 20
STEEPEST = 3.0
"""The number of scales from its middle up to which the line follows a feature."""


class Target(NamedTuple):
    """What is added to the roofline's answer, as log-odds (the step: as logarithm), and how sure that is."""

    start: float
    slopes: Tuple[float, ...]
    bands: Tuple[Tuple[float, float], ...]
    """The interval's ends beside the answers of a slow and of a fast machine, by level of SM activity."""
    guessed_bands: Tuple[Tuple[float, float], ...]
    """The same where the work of layers is guessed."""

    def moved(self, scaled: Sequence[float]) -> float:
        """The learned part for one job, by its features as `SourceModel.scaled` has them."""
        return self.start + sum(slope * place for slope, place in zip(self.slopes, scaled))


class SourceModel(NamedTuple):
    """What was learned for one source of the work (summary or trace)."""

    coefficients: Mapping[str, float]
    middles: Tuple[float, ...]
    scales: Tuple[float, ...]
    targets: Mapping[str, Target]
    ranges: Tuple[Tuple[float, float], ...]
    host: Tuple[float, float]
    """How much longer the CPU takes on a fast and on a slow machine."""
    busy_shift: float
    """Log-odds added to a job's SM activity for the question whether it is busy."""

    def scaled(self, values: Sequence[float]) -> List[float]:
        """The features as the lines take them."""
        return [
            max(-STEEPEST, min(STEEPEST, (value - middle) / scale))
            for value, middle, scale in zip(values, self.middles, self.scales)
        ]


class UtilizationModel(NamedTuple):
    """A checked file."""

    sources: Mapping[str, SourceModel]
    coverage: float
    outside: float
    """How much wider the intervals are outside the range of the measurements."""
    card: Mapping[str, Any]


@lru_cache(maxsize=4)
def packaged(only: str = "") -> UtilizationModel:
    """The package's own model; of one source where only that is asked for, as at a submission."""
    return load(data_path("models", FILE), only)


def load(path: Path, only: str = "") -> UtilizationModel:
    """Read and check one file; ConfigError says what is wrong with it."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}; `make fit-utilization` writes it"
        ) from None
    if len(text) > SIZE_CAP:
        raise ConfigError(f"{path}: larger than {SIZE_CAP} bytes, so it is no utilization model")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not JSON: {error}") from None
    return from_json(content, str(path), only)


def from_json(content: Any, where: str, only: str = "") -> UtilizationModel:
    """Check what a file says, number by number; of one source where `only` names it."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ConfigError(f"{where}: is not of format {FORMAT}; `make fit-utilization` writes one")
    if content.get("features") != list(NAMES):
        raise ConfigError(f"{where}: was fitted on other features than this version has; fit it again")
    try:
        parts = content["sources"].items()
        sources = {name: _fitted(part) for name, part in parts if only in ("", name)}
        coverage, outside = usable_number(content["coverage"]), usable_number(content["outside"])
        return UtilizationModel(sources, coverage, outside, dict(content.get("card", {})))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{where}: is damaged ({error}); `make fit-utilization` writes it again") from None


def _fitted(content: Mapping[str, Any]) -> SourceModel:
    coefficients: Dict[str, float] = {}
    for name in roofline.NAMES:
        value = usable_number(content["coefficients"][name])
        if value <= 0:
            raise ValueError(f"{name} must be positive")
        coefficients[name] = value
    ranges = tuple((usable_number(low), usable_number(high)) for low, high in content["ranges"])
    if len(ranges) != len(NAMES):
        raise ValueError("as many ranges as features are needed")
    targets = {name: _target(content["targets"][name]) for name in TARGETS}
    middles, scales = _numbers(content["middles"]), _numbers(content["scales"])
    if min(scales) <= 0:
        raise ValueError("a scale must be positive")
    fast, slow = (usable_number(factor) for factor in content["host"])
    if not 0 < fast <= slow:
        raise ValueError("host must be two positive factors, the smaller first")
    lean = usable_number(content["lean"])
    return SourceModel(coefficients, middles, scales, targets, ranges, (fast, slow), lean)


def _numbers(content: Sequence[Any]) -> Tuple[float, ...]:
    if len(content) != len(NAMES):
        raise ValueError("a number for each feature is needed")
    return tuple(usable_number(number) for number in content)


def _target(content: Mapping[str, Any]) -> Target:
    bands, guessed = (_bands(content[name]) for name in ("bands", "guessed_bands"))
    return Target(usable_number(content["start"]), _numbers(content["slopes"]), bands, guessed)


def _bands(content: Sequence[Any]) -> Tuple[Tuple[float, float], ...]:
    bands = tuple((usable_number(low), usable_number(high)) for low, high in content)
    if len(bands) != len(LEVELS) + 1:
        raise ValueError("as many bands as levels are needed")
    return bands
