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

from functools import lru_cache
from typing import Any, List, Mapping, NamedTuple, Sequence, Tuple

from slurm_gpumem.data import data_file
from slurm_gpumem.estimators.fitted_file import fitted
from slurm_gpumem.utilization.features import NAMES

FORMAT = "gpumem-utilization/4"
FILE = "utilization.json"
TARGETS = ("sm_active", "sm_occupancy", "dram_active", "step_seconds")
LEVELS = (0.3, 0.7)
"""Shares of SM activity between which jobs are predicted equally well: idle, half busy, busy."""
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
    """A file."""

    sources: Mapping[str, SourceModel]
    coverage: float
    outside: float
    """How much wider the intervals are outside the range of the measurements."""
    card: Mapping[str, Any]


@lru_cache(maxsize=4)
def packaged(only: str = "") -> UtilizationModel:
    """The package's own model; of one source where only that is asked for, as at a submission."""
    return fitted(data_file("models", FILE), FORMAT, lambda content: from_json(content, only))


def from_json(content: Any, only: str = "") -> UtilizationModel:
    """What a file says; of one source where `only` names it."""
    if content["features"] != list(NAMES):
        raise ValueError("it was fitted on other features than this version has")
    sources = {name: _source(part) for name, part in content["sources"].items() if only in ("", name)}
    return UtilizationModel(sources, content["coverage"], content["outside"], content.get("card", {}))


def _source(content: Mapping[str, Any]) -> SourceModel:
    targets = {name: _target(content["targets"][name]) for name in TARGETS}
    fast, slow = content["host"]
    return SourceModel(
        coefficients=content["coefficients"],
        middles=tuple(content["middles"]),
        scales=tuple(content["scales"]),
        targets=targets,
        ranges=tuple((low, high) for low, high in content["ranges"]),
        host=(fast, slow),
        busy_shift=content["lean"],
    )


def _target(content: Mapping[str, Any]) -> Target:
    bands, guessed = (
        tuple((low, high) for low, high in content[name]) for name in ("bands", "guessed_bands")
    )
    return Target(content["start"], tuple(content["slopes"]), bands, guessed)
