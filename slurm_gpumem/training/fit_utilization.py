"""Fit utilization on jobs measured alone, and interference on sets: `make fit-utilization`.

Writes models/utilization.json (fitted on all rows), models/utilization-folds.json.gz (one fit a fold, without
that fold's models; `gpumem accuracy` scores with these) and the card models/utilization.md.
"""

from __future__ import annotations

import argparse
import gzip
import json
from hashlib import sha256
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from slurm_gpumem.data import data_path
from slurm_gpumem.memory.correction.folds import FOLDS
from slurm_gpumem.training.fit_roofline import fit_coefficients
from slurm_gpumem.training.utilization_rows import UtilizationRow, rows_of
from slurm_gpumem.utilization.accuracy import FOLDS_FILE
from slurm_gpumem.utilization.features import NAMES, features, logit
from slurm_gpumem.utilization.measured import FOLDER, load_solo, load_texts
from slurm_gpumem.utilization.model import FILE, FORMAT, TARGETS
from slurm_gpumem.utilization.predict import SUMMARY, plain_answers
from slurm_gpumem.utilization.roofline import rates_of, step_times

SEED = 0
COVERAGE = 0.8
"""Share of jobs that an interval is meant to hold."""
OUTSIDE = 1.5
"""How much wider the intervals are outside the range of the measurements."""
TRIM = 0.002
CLIP = 2.5
"""A difference in log-odds beyond this teaches nothing: the text does not show what was run."""
ITERATIONS = 120
LEARNING_RATE = 0.05
LEAF = 12
Array = Any


def fit(rows: Sequence[UtilizationRow]) -> Dict[str, Any]:
    """Coefficients, trees, intervals and ranges from these rows."""
    coefficients = fit_coefficients([row for row in rows if row.fullest and not row.seen.shapeless])
    values, rest = _table(rows, coefficients)
    fold = np.array([row.fold for row in rows])
    weight = _weights(rows)
    fullest = np.array([row.fullest for row in rows])
    targets = {}
    for name in TARGETS:
        # Intervals from rows that their trees never saw, one text a job.
        off = rest[name] - _crossed(values, rest[name], weight, fold)
        low, high = np.quantile(off[fullest], [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
        targets[name] = {**_export(_trees(values, rest[name], weight)), "low": low, "high": high}
    ranges = np.quantile(values, [TRIM, 1 - TRIM], axis=0).T
    return {"coefficients": coefficients, "targets": targets, "ranges": ranges.tolist()}


def _table(rows: Sequence[UtilizationRow], coefficients: Dict[str, float]) -> Tuple[Array, Dict[str, Array]]:
    """Features, and by target what the roofline leaves to learn."""
    values = []
    rest: Dict[str, List[float]] = {name: [] for name in TARGETS}
    for row in rows:
        times = step_times(row.work, rates_of(row.run.gpu), coefficients)
        values.append(features(row.work, times, row.seen))
        for name, plain in plain_answers(times).items():
            true = row.run.values[name]
            scaled = float(np.log(true)) if name == "step_seconds" else logit(true)
            rest[name].append(min(max(scaled - plain, -CLIP), CLIP))
    return np.array(values), {name: np.array(found) for name, found in rest.items()}


def _weights(rows: Sequence[UtilizationRow]) -> Array:
    """A job counts once, however many texts it has; the fullest as much as all others together."""
    others: Dict[str, int] = {}
    for row in rows:
        if not row.fullest:
            others[row.run.key] = others.get(row.run.key, 0) + 1
    return np.array([1.0 if row.fullest else 1.0 / others[row.run.key] for row in rows])


def _trees(values: Array, target: Array, weight: Array) -> Any:
    return HistGradientBoostingRegressor(
        loss="absolute_error",
        max_depth=3,
        max_iter=ITERATIONS,
        learning_rate=LEARNING_RATE,
        min_samples_leaf=LEAF,
        early_stopping=False,
        random_state=SEED,
    ).fit(values, target, sample_weight=weight)


def _crossed(values: Array, target: Array, weight: Array, fold: Array) -> Array:
    found = np.zeros(len(target))
    for number in np.unique(fold):
        held = fold == number
        if held.all():
            return found
        found[held] = _trees(values[~held], target[~held], weight[~held]).predict(values[held])
    return found


def _export(model: Any) -> Dict[str, Any]:
    trees = [_tree(stage[0].nodes, 0) for stage in model._predictors]
    return {"start": round(float(np.ravel(model._baseline_prediction)[0]), 8), "trees": trees}


def _tree(nodes: Array, at: int) -> Any:
    node = nodes[at]
    if node["is_leaf"]:
        return round(float(node["value"]), 5)
    below, above = _tree(nodes, int(node["left"])), _tree(nodes, int(node["right"]))
    return [int(node["feature_idx"]), round(float(node["num_threshold"]), 6), below, above]


def as_file(sources: Dict[str, Any], card: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
    """What `utilization.model` reads."""
    return {
        "format": FORMAT,
        "features": list(NAMES),
        "sources": sources,
        "coverage": COVERAGE,
        "outside": OUTSIDE,
        **({"card": card} if card else {}),
    }


def fit_all(rows: Sequence[UtilizationRow]) -> Tuple[Dict[str, Any], List[Dict[str, Any]]]:
    """The model of all rows, and one without each fold."""
    parts = [fit([row for row in rows if row.fold != number]) for number in range(FOLDS)]
    return fit(rows), parts


def data_sha256(folder: Path) -> str:
    """One hash over the measured jobs and sets, file by file in order of name."""
    total = sha256()
    for path in sorted(p for p in folder.iterdir() if p.name.startswith(("solo", "sets"))):
        total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()


def main(argv: Optional[List[str]] = None) -> int:
    """Fit, write, and say how good it is on models that were held out."""
    from slurm_gpumem.training.utilization_card import card_lines

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help=f"folder of measured jobs (models/{FOLDER})")
    parser.add_argument("--out", type=Path, help="folder to write into (models)")
    args = parser.parse_args(argv)
    folder = args.data or data_path("models", FOLDER)
    out = args.out or folder.parent
    runs = load_solo(folder)
    rows = rows_of(runs, load_texts({run.summary: None for run in runs}))
    whole, parts = fit_all(rows)
    card = {
        "data": f"{len(runs)} jobs of {len({run.model for run in runs})} models, each alone on an H200",
        "data_sha256": data_sha256(folder),
        "command": "python -m slurm_gpumem.training.fit_utilization",
        "seed": SEED,
        "folds": FOLDS,
    }
    text = json.dumps(as_file({SUMMARY: whole}, card), separators=(",", ":")) + "\n"
    (out / FILE).write_text(text)
    packed = json.dumps([as_file({SUMMARY: part}) for part in parts], separators=(",", ":")).encode()
    (out / FOLDS_FILE).write_bytes(gzip.compress(packed, mtime=0))
    lines = card_lines(folder, card, sha256(text.encode()).hexdigest(), out)
    (out / "utilization.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
