"""What measured runs of similar models show about a job.

A summary does not show what a model does between its layers, but models of the same classes do the same
there. So what a similar model took beyond its structural estimate, as a share of its activations, shows what
this job will. Two models are as similar as the class names that their summaries have in common, rare ones
counting most; of a model's runs, those count most whose activations, precision and size are like the job's.
How far these runs are apart is the spread, which scales the margin.

    {"format": "gpumem-similar-models/1", "models": [names], "classes": [names], "weights": [a number each],
     "groups": {group: lines}}

Each group is a string of lines, the first one JSON: for each set of classes that texts name, their numbers.
The others are in the same order and JSON too, [[model, beyond, activations, amp, log_total], ...]: the runs
of these summaries. A job has one group and few similar models; reading the others would take longer than its
estimate.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import exp, sqrt
from typing import (
    AbstractSet,
    Any,
    Dict,
    FrozenSet,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Sequence,
    Tuple,
)

from slurm_gpumem.data import data_file, fitted
from slurm_gpumem.summaries.types import ModelSummary

FILE = "similar-models.json"
FORMAT = "gpumem-similar-models/1"
_FALL = 0.07
"""Models that have this much less in common count 1/e as much."""
_LEAST_SIMILAR = 0.5
_ACTIVATIONS, _PRECISION, _SIZE = 3.0, 0.7, 0.3
"""How fast runs count less as their activations' share, precision and logarithm of size differ."""
_PRIOR_WEIGHT = 0.1
"""Weight of the assumption that nothing is beyond the estimate: runs of that weight in all count by half."""
_PRIOR_SPREAD = 0.1
_LEAST_SPREAD = 0.003
LEAST_ACTIVATIONS = 0.15


class Conditions(NamedTuple):
    """By what one run is like another."""

    activations: float
    """Their share of the structural estimate."""
    amp: float
    log_total: float
    """Logarithm of the structural estimate in MiB."""


class Run(NamedTuple):
    """A measured run, seen through one text."""

    model: int
    beyond: float
    """What it took beyond its structural estimate, as a share of its activations."""
    activations: float
    """Their share of the estimate."""
    amp: float
    log_total: float


@dataclass(frozen=True)
class Profile:
    """Runs of models whose summaries name the same classes."""

    classes: Tuple[str, ...]
    text: str
    """The runs as JSON."""

    @cached_property
    def runs(self) -> Tuple[Run, ...]:
        """The runs."""
        return tuple(map(Run._make, json.loads(self.text)))


Near = Tuple[Tuple[float, Run], ...]
"""Runs of models that are like a given one, each with how much its model counts."""


@dataclass(frozen=True)
class SimilarModels:
    """All measured runs by group of summaries; see `estimator.group_of`."""

    models: Tuple[str, ...]
    weights: Mapping[str, float]
    groups: Mapping[str, Tuple[Profile, ...]]

    def near(self, group: str, classes: AbstractSet[str]) -> Near:
        """The runs of all models that have much in common with these classes."""
        squares = {name: weight**2 for name, weight in self.weights.items()}
        rarest = max(squares.values(), default=1.0)
        own = {name: squares.get(name, rarest) for name in classes}
        length = sqrt(sum(own.values()))
        found: List[Tuple[float, Run]] = []
        for profile in self.groups.get(group, ()):
            shared = sum([own[name] for name in profile.classes if name in own])
            if shared < (_LEAST_SIMILAR * length) ** 2:
                continue  # Not even if it had no other classes.
            other = sqrt(sum([squares[name] for name in profile.classes])) or 1.0
            similarity = shared / (length * other) if shared else 0.0
            if similarity >= _LEAST_SIMILAR:
                counts = exp((similarity - 1) / _FALL)
                found.extend((counts, run) for run in profile.runs)
        return tuple(found)


@dataclass(frozen=True)
class NeighbourRuns:
    """What the runs of similar models predict for one job."""

    beyond: float
    """What the job will take beyond its estimate, as a share of the estimate."""
    spread: float
    """How far the runs are apart, as a share of the estimate."""


def neighbour_runs(near: Near, job: Conditions, left_out: AbstractSet[int] = frozenset()) -> NeighbourRuns:
    """What the runs predict for a job under these conditions; models in `left_out` do not count."""
    weight, first, second = _PRIOR_WEIGHT, 0.0, _PRIOR_WEIGHT * _PRIOR_SPREAD**2
    for counts, run in _weighed(near, job):
        if run.model not in left_out:
            weight += counts
            first += counts * run.beyond
            second += counts * run.beyond**2
    mean = first / weight
    share = max(job.activations, LEAST_ACTIVATIONS)
    spread = share * sqrt(max(0.0, second / weight - mean**2))
    return NeighbourRuns(share * mean, max(spread, _LEAST_SPREAD))


def nearest(near: Near, job: Conditions, known: SimilarModels) -> str:
    """Name of the model whose runs count most; "" where there is none."""
    weights: Dict[int, float] = {}
    for counts, run in _weighed(near, job):
        weights[run.model] = max(weights.get(run.model, 0.0), counts)
    return known.models[max(weights, key=lambda model: weights[model])] if weights else ""


def _weighed(near: Near, job: Conditions) -> Iterator[Tuple[float, Run]]:
    """The runs, each with what it counts for a job under these conditions."""
    for counts, run in near:
        apart = _ACTIVATIONS * abs(job.activations - run.activations)
        apart += _SIZE * abs(job.log_total - run.log_total)
        yield counts * exp(-apart - (_PRECISION if job.amp != run.amp else 0.0)), run


def classes_of(summary: ModelSummary) -> FrozenSet[str]:
    """The classes that a summary names."""
    return frozenset(layer.kind for layer in summary.layers)


# -- File ----------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def packaged() -> SimilarModels:
    """Those of the package's own measurements."""
    return fitted(data_file("models/fitted", FILE), FORMAT, from_json)


class _Groups(Mapping[str, Tuple[Profile, ...]]):
    """The groups of a file, each read when it is first asked for."""

    def __init__(self, texts: Mapping[str, str], classes: Sequence[str]) -> None:
        self._texts, self._classes = texts, classes
        self._read: Dict[str, Tuple[Profile, ...]] = {}

    def __getitem__(self, group: str) -> Tuple[Profile, ...]:
        if group not in self._read:
            first, *lines = self._texts[group].split("\n")
            sets = [tuple([self._classes[at] for at in numbers]) for numbers in json.loads(first)]
            self._read[group] = tuple(map(Profile, sets, lines))
        return self._read[group]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def from_json(content: Any) -> SimilarModels:
    """What a file says."""
    classes = content["classes"]
    weights = dict(zip(classes, content["weights"]))
    return SimilarModels(tuple(content["models"]), weights, _Groups(content["groups"], classes))
