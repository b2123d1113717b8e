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
from math import log, log1p
from typing import Any, List, Mapping, NamedTuple, Sequence, Tuple

from slurm_gpumem.data import data_file, fitted
from slurm_gpumem.units import MIB
from slurm_gpumem.utilization.roofline import Times
from slurm_gpumem.utilization.work import KINDS, StepWork

# What the learned part looks at: the roofline's own answers, and what decides how far to trust them.


_IN_WORDS = {
    "log_gpu_seconds": "the GPU's time for a step",
    "log_cpu_seconds": "the CPU's time for a step",
    "log_cpu_over_gpu": "the CPU's time beside the GPU's",
    "coverage": "how much of the GPU its kernels fill",
    "short": "its share of short kernels",
    "logit_active": "its SM activity",
    "logit_occupied": "its occupancy",
    "logit_dram": "its memory traffic",
    "log_kernels": "its number of kernels",
    "log_flops_a_kernel": "the arithmetic of its kernels",
    "log_bytes_a_kernel": "the bytes that its kernels move",
    "log_parameter_mib": "its number of parameters",
    "points_a_product": "its elementwise operations beside its matrix products",
    "casts_a_product": "its casts beside its matrix products",
    "guessed": "layers whose work is guessed",
}
NAMES = (*_IN_WORDS, *(f"share_{kind}" for kind in KINDS))
_LIMIT = 6.0


class TextQuality(NamedTuple):
    """What is known of a summary or trace besides its work."""

    guessed: bool = False


def in_words(name: str) -> str:
    """A feature as people call it."""
    return _IN_WORDS.get(name) or f"its time in {name[len('share_') :].replace('_', ' ')} kernels"


def logit(share: float) -> float:
    """The log-odds of a share, within bounds that a measurement can tell apart."""
    inside = min(max(share, 1e-9), 1 - 1e-9)
    return min(max(log(inside / (1 - inside)), -_LIMIT), _LIMIT)


def features(work: StepWork, times: Times, quality: TextQuality) -> List[float]:
    """The numbers by NAMES."""
    flops = moved = kernels = 0
    for (_, arithmetic, taken, _), count in work.kernels.items():
        flops += arithmetic * count
        moved += taken * count
        kernels += count
    gpu = max(times.gpu, 1e-9)
    host = work.host
    return [
        log(gpu),
        log(max(times.cpu, 1e-9)),
        log(max(times.cpu, 1e-9) / gpu),
        times.busy / gpu,
        times.short / gpu,
        logit(times.busy / times.step),
        logit(times.warps / times.step),
        logit(times.traffic / times.step),
        log(max(kernels, 1)),
        log1p(flops / max(kernels, 1)),
        log1p(moved / max(kernels, 1)),
        log1p(work.parameter_bytes / MIB),
        host.points / max(host.products, 1),
        host.casts / max(host.products, 1),
        float(quality.guessed),
        *(seconds / gpu for seconds in times.by_kind),
    ]


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
    return fitted(data_file("models/fitted", FILE), FORMAT, lambda content: from_json(content, only))


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
