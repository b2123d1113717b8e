"""Refit the estimate's site layer from the site's own jobs, and hold it against the one in force."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional

from slurm_gpumem.errors import ConfigError, NotLearnedError, UsageError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.site_fit import LayerScore, SiteRun, better, fit, held_out, in_force, shortage
from slurm_gpumem.estimators.site_layer import SiteLayer, layer_json, load_layer
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


def learn(found: LearnableRuns, runs: List[SiteRun], now: Optional[SiteLayer], coverage: float) -> Learned:
    """Fit a layer on the usable runs; NotLearnedError says what is missing."""
    missing = shortage(runs)
    if missing:
        raise NotLearnedError(f"{missing}.\nNothing was changed.")
    layer = fit(runs, registry.DEFAULT, coverage)
    was, will = in_force(runs, now), held_out(runs, registry.DEFAULT, coverage)
    layer = layer._replace(card=_card(found, runs, was, will))
    return Learned(layer, was, will, better(will, was, coverage))


def current_layer(path: str) -> Optional[SiteLayer]:
    """The layer in force; ConfigError about one that cannot be read, which nobody would miss if replaced."""
    if not os.path.exists(path):
        return None
    try:
        return load_layer(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: is not used at present, and would be replaced unseen: {error}.\nMove it away first."
        ) from None


def write_layer(path: str, layer: SiteLayer) -> Optional[str]:
    """Write the layer whole; the one before stays beside it under the next free number, which is returned."""
    kept = None
    try:
        if os.path.exists(path):
            name = next(name for n in range(1, 10_000) if not os.path.exists(name := f"{path}.{n}"))
            os.link(path, name)
            kept = name
        write_atomic(Path(path), layer_json(layer), durable=True)
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
        "before": {key: round(value, 4) for key, value in was._asdict().items()},
        "held_out": {key: round(value, 4) for key, value in will._asdict().items()},
    }
