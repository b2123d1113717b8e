"""Refit the estimate's site layer from the site's own jobs, and hold it against the one in force."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional

from slurm_gpumem.errors import ConfigError, NotLearnedError, UsageError
from slurm_gpumem.estimators.site_contexts import LearnedContext, with_contexts
from slurm_gpumem.estimators.site_fit import (
    LayerScore,
    SiteRun,
    better,
    fit,
    held_out,
    in_force,
    nothing_learned,
    shortage,
)
from slurm_gpumem.estimators.site_layer import SiteLayer, layers_json, load_layers
from slurm_gpumem.files import write_atomic
from slurm_gpumem.site.learn_runs import LearnableRuns


@dataclass(frozen=True)
class Learned:
    """A new layer beside the one in force, both on the same jobs."""

    layer: SiteLayer
    was: LayerScore
    """In force at present."""
    will: LayerScore
    """The new one, on models that it has not seen."""
    better: bool


def learn(
    found: LearnableRuns,
    runs: Mapping[str, List[SiteRun]],
    now: Mapping[str, SiteLayer],
    coverage: float,
    contexts: Mapping[str, LearnedContext],
) -> List[Learned]:
    """Fit a layer for each estimator that has enough usable runs; NotLearnedError says what is missing.

    Where jobs' reports teach `contexts`, no run is needed.
    """
    missing = {estimator: shortage(own) for estimator, own in runs.items()}
    if all(missing.values()) and not contexts:
        lines = [f"{estimator}: {why}." for estimator, why in missing.items()]
        raise NotLearnedError("\n".join([*lines, "Nothing was changed."]))
    return [
        _learn_one(estimator, found, own, now.get(estimator), coverage)
        for estimator, own in runs.items()
        if not missing[estimator]
    ]


def with_reported(
    estimators: Iterable[str], layers: Mapping[str, SiteLayer], contexts: Dict[str, LearnedContext]
) -> Dict[str, SiteLayer]:
    """The layers that jobs' reports of their context change, new ones for estimators that had none."""
    changed: Dict[str, SiteLayer] = {}
    for estimator in estimators:
        before = layers.get(estimator)
        layer = with_contexts(before or nothing_learned(estimator), contexts)
        if layer.constants != (before.constants if before else {}):
            changed[estimator] = layer
    return changed


def _learn_one(
    estimator: str, found: LearnableRuns, runs: List[SiteRun], now: Optional[SiteLayer], coverage: float
) -> Learned:
    layer = fit(runs, estimator, coverage)
    was, will = in_force(runs, now), held_out(runs, estimator, coverage)
    layer = layer._replace(card=_card(found, runs, was, will))
    return Learned(layer, was, will, better(will, was, coverage))


def current_layers(path: str) -> Dict[str, SiteLayer]:
    """The layers in force; ConfigError about a file that cannot be read: it must not be replaced unseen."""
    if not os.path.exists(path):
        return {}
    try:
        return load_layers(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: is not used at present, and would be replaced unseen: {error}.\nMove it away first."
        ) from None


def write_layers(path: str, layers: Iterable[SiteLayer]) -> Optional[str]:
    """Write the layers whole; the file before is kept under the next free number, which is returned."""
    kept = None
    try:
        if os.path.exists(path):
            name = next(name for n in range(1, 10_000) if not os.path.exists(name := f"{path}.{n}"))
            os.link(path, name)
            kept = name
        write_atomic(Path(path), layers_json(layers), durable=True)
    except OSError as error:
        if kept is not None:
            os.unlink(kept)
        raise UsageError(
            f"{path}: cannot be written: {error.strerror}. Run it as root, or name another file with --output"
        ) from None
    return kept


def _card(found: LearnableRuns, runs: List[SiteRun], was: LayerScore, will: LayerScore) -> Dict[str, Any]:
    return {
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "records": found.records,
        "jobs": len(runs),
        "models": len({run.fingerprint for run in runs}),
        "users": len({run.user for run in runs}),
        "before": {key: round(value, 4) for key, value in was._asdict().items()},
        "held_out": {key: round(value, 4) for key, value in will._asdict().items()},
    }
