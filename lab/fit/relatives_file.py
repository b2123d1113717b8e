"""Make the list of relatives that estimates read: see `estimators.corrected.relatives`."""

from __future__ import annotations

import json
from dataclasses import replace
from math import log
from typing import AbstractSet, Any, Callable, Dict, FrozenSet, Iterable, List, Sequence, Set, Tuple

from slurm_gpumem.estimators.corrected.relatives import (
    FORMAT,
    LEAST_ACTIVATIONS,
    Profile,
    Relatives,
    Run,
    circumstances,
)

LEAST_BEYOND, MOST_BEYOND = -0.5, 2.0


def run_of(model: int, features: Sequence[float], real_mib: float, total_mib: float) -> Run:
    """A measured run as a later job's relative."""
    activations, amp, log_total = circumstances(features)
    beyond = (real_mib / total_mib - 1) / max(activations, LEAST_ACTIVATIONS)
    return Run(model, max(LEAST_BEYOND, min(MOST_BEYOND, beyond)), activations, amp, log_total)


def make(models: Sequence[str], runs: Iterable[Tuple[str, FrozenSet[str], Run]]) -> Relatives:
    """From runs with their group and classes; a class is as rare as the models that name it are few."""
    named: Dict[str, Set[int]] = {}
    profiles: Dict[str, Dict[FrozenSet[str], List[Run]]] = {}
    for group, classes, run in runs:
        profiles.setdefault(group, {}).setdefault(classes, []).append(run)
        for name in classes:
            named.setdefault(name, set()).add(run.model)
    weights = {name: round(log((1 + len(models)) / len(by)), 4) for name, by in sorted(named.items())}
    return Relatives(
        tuple(models),
        weights,
        {
            group: tuple(_profile(classes, found[classes]) for classes in sorted(found, key=sorted))
            for group, found in sorted(profiles.items())
        },
    )


def only(relatives: Relatives, wanted: Callable[[str], bool]) -> Relatives:
    """Those of some models: what is left to teach about one whose own runs must not."""
    kept = {number for number, name in enumerate(relatives.models) if wanted(name)}
    groups = {
        group: tuple(
            _profile(set(profile.classes), [run for run in profile.runs if run.model in kept])
            for profile in profiles
        )
        for group, profiles in relatives.groups.items()
    }
    return replace(relatives, groups=groups)


def _profile(classes: AbstractSet[str], runs: Iterable[Sequence[float]]) -> Profile:
    return Profile(tuple(sorted(classes)), json.dumps(list(runs), separators=(",", ":")))


def to_json(relatives: Relatives) -> Dict[str, Any]:
    """As the file has it."""
    classes = list(relatives.weights)
    number = {name: at for at, name in enumerate(classes)}

    def text(profiles: Sequence[Profile]) -> str:
        named = [[number[name] for name in profile.classes] for profile in profiles]
        rounded = [_profile(set(profile.classes), map(_rounded, profile.runs)) for profile in profiles]
        return "\n".join([json.dumps(named, separators=(",", ":")), *(profile.text for profile in rounded)])

    return {
        "format": FORMAT,
        "models": list(relatives.models),
        "classes": classes,
        "weights": list(relatives.weights.values()),
        "groups": {group: text(profiles) for group, profiles in relatives.groups.items()},
    }


def _rounded(run: Run) -> List[float]:
    return [run.model, round(run.beyond, 4), round(run.activations, 3), run.amp, round(run.log_total, 2)]
