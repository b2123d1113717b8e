"""Stored predictions: what an estimator said of each measured run when it had not seen the run's model.

Some estimators are too slow or need too much to be run again for a table: they are trained, or trace a live
model. Their answers are kept beside the measurements, and `make accuracy` scores them on the same rows.

    lab/data/predictions/NAME.json.gz: {"format": "gpumem-predictions/1", "estimator": NAME,
        "card": {how, figures}, "rows": {key of the run: [peak MiB, request MiB]}}
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Mapping, Tuple

from lab.places import PREDICTIONS
from slurm_gpumem.errors import ConfigError

FORMAT = "gpumem-predictions/1"


@dataclass(frozen=True)
class Predictions:
    """One estimator's answers by the key of the run."""

    estimator: str
    rows: Mapping[str, Tuple[int, int]]
    """Peak and request in MiB."""
    card: Mapping[str, Any]


def load_predictions(folder: Path = PREDICTIONS) -> Dict[str, Predictions]:
    """All stored predictions of a folder by their estimator's name."""
    found = [_load(path) for path in sorted(folder.glob("*.json.gz"))]
    return {item.estimator: item for item in found}


def _load(path: Path) -> Predictions:
    try:
        content = json.loads(gzip.decompress(path.read_bytes()))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        return Predictions(content["estimator"], content["rows"], content["card"])
    except (OSError, EOFError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: is no file of predictions ({error})") from None
