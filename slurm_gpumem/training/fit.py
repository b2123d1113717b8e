"""Fit the learned correction and its bound on the measured runs: `python -m slurm_gpumem.training.fit`.

Writes models/correction.json (fitted on all rows) and models/correction-folds.json.gz (one fit a fold,
without that fold's models; `gpumem accuracy` scores with these), and prints the cross-validated figures.
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
from slurm_gpumem.memory.correction import estimator, folds
from slurm_gpumem.memory.correction.estimator import OUTSIDE_COVERAGE
from slurm_gpumem.memory.correction.features import NAMES
from slurm_gpumem.memory.correction.trees import FORMAT
from slurm_gpumem.memory.ground_truth import FOLDER, load_ground_truth
from slurm_gpumem.training.correction_rows import Row, rows

SEED = 0
COVERAGE: Dict[str, float] = {"shown": 0.98, "torchsummary": 0.98, "hidden": 0.975, "shapeless": 0.9}
"""What is asked of the bound. Without shapes the input's size is a guess: 98 % would ask for whole GPUs."""
SHARPNESS = 1.3
"""Power of the spread: above one, sure jobs get less and unsure ones more of the same coverage."""
WIDER = 1.25
"""Outside the measured range the bound is at least this much wider; there are few such rows."""
TRIM = 0.001
"""Share of rows at each end of a feature that do not count as its range."""
CLIP = 1.0
"""A residual beyond a factor of e teaches nothing: the text does not show what was run."""
FLOOR = 0.01
"""Residuals below 1 % are as good as none."""
Array = Any
_MOST_STEPS, _MOST_MARGIN, _HALVINGS = 1000.0, 20.0, 40


def fit_trees(
    values: Array, target: Array, iterations: int, weights: Array = None, loss: str = "absolute_error"
) -> Any:
    """One ensemble of shallow trees."""
    return HistGradientBoostingRegressor(
        loss=loss,
        max_depth=3,
        max_iter=iterations,
        learning_rate=0.06,
        min_samples_leaf=20,
        early_stopping=False,
        random_state=SEED,
    ).fit(values, target, sample_weight=weights)


class Data:
    """The rows as arrays: `values` and what is indexed by `row` hold one line a point, the rest one a row."""

    def __init__(self, found: Sequence[Row]) -> None:
        points = [(index, point) for index, row in enumerate(found) for point in row.points]
        self.row = np.array([index for index, _ in points])
        self.values = np.array([point.features for _, point in points])
        self.share = np.array([point.share for _, point in points])
        self.total = np.array([point.total_mib for _, point in points])
        self.real = np.array([row.real_mib for row in found])
        self.target = np.log(self.real / np.array([row.total_mib for row in found]))
        self.fold = np.array([folds.fold_of(row.model) for row in found])
        self.family = np.array([row.family for row in found])
        self.group = np.array([estimator.group_of(row.points[0].features) for row in found])
        self.strange = np.array([row.strange for row in found])

    def summed(self, values: Array) -> Array:
        """What the points' values (times their shares) make together, row by row."""
        return np.bincount(self.row, weights=self.share * values, minlength=len(self.real))

    def residual(self, center: Array) -> Array:
        """log(real / corrected), row by row."""
        return np.log(self.real / self.summed(self.total * np.exp(center)))

    def steps(self, center: Array, spread: Array) -> Array:
        """How many spreads above its centre each row's request must be to hold what was needed."""
        low, high = np.full(len(self.real), -_MOST_STEPS), np.full(len(self.real), _MOST_STEPS)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            margin = np.minimum(middle[self.row] * np.exp(spread), _MOST_MARGIN)
            held = self.summed(self.total * np.exp(center + margin)) >= self.real
            low, high = np.where(held, low, middle), np.where(held, middle, high)
        return high


def fit(data: Data, chosen: Array, split: Optional[Array] = None) -> Dict[str, Any]:
    """Centre, spread and bounds from the chosen rows; the bound from rows that their centre never saw."""
    center, spread = crossed(data, chosen, data.fold if split is None else split)
    inside = chosen[data.row]
    values = data.values[inside]
    target = np.clip(data.target, -CLIP, CLIP)[data.row][inside]
    ranges = _ranges(values)
    out = data.strange | (np.bincount(data.row, weights=_outside(data.values, ranges)) > 0)
    steps = data.steps(center, spread)
    bounds = {
        name: _bound(steps[chosen & (data.group == name)], out[chosen & (data.group == name)], share)
        for name, share in COVERAGE.items()
    }
    return {
        "format": FORMAT,
        "features": list(NAMES),
        "center": _export(fit_trees(values, target, 200, data.share[inside])),
        "spread": _export(
            fit_trees(values, _size(data, center)[inside], 80, data.share[inside], "squared_error")
        ),
        "bounds": bounds,
        "ranges": [[float(low), float(high)] for low, high in ranges],
    }


def crossed(data: Data, chosen: Array, split: Array) -> Tuple[Array, Array]:
    """Centre and spread of every point among the chosen rows, by fits without its part of `split`."""
    inside = chosen[data.row]
    parts = split[data.row]
    target = np.clip(data.target, -CLIP, CLIP)[data.row]
    center = np.zeros(len(data.row))
    for number in np.unique(split[chosen]):
        held, rest = inside & (parts == number), inside & (parts != number)
        model = fit_trees(data.values[rest], target[rest], 200, data.share[rest])
        center[held] = model.predict(data.values[held])
    size = _size(data, center)
    spread = np.zeros(len(data.row))
    for number in np.unique(split[chosen]):
        held, rest = inside & (parts == number), inside & (parts != number)
        model = fit_trees(data.values[rest], size[rest], 80, data.share[rest], "squared_error")
        spread[held] = model.predict(data.values[held])
    return center, spread


def _size(data: Data, center: Array) -> Array:
    """log of how far from its centre a row is, sharpened, for each of its points."""
    return SHARPNESS * np.log(np.maximum(np.abs(data.residual(center)), FLOOR))[data.row]


def _bound(steps: Array, out: Array, share: float) -> Dict[str, float]:
    inside = _conformal(steps[~out], share)
    wider = inside * WIDER
    return {
        "quantile": inside,
        "outside": max(wider, _conformal(steps[out], min(share, OUTSIDE_COVERAGE))) if out.any() else wider,
        "coverage": share,
    }


def _conformal(steps: Array, share: float) -> float:
    """The smallest step that covers `share` of jobs to come: one rank above the sample's own quantile."""
    rank = min(len(steps), int(np.ceil((len(steps) + 1) * share)))
    return float(np.sort(steps)[rank - 1])


def _ranges(values: Array) -> List[Tuple[float, float]]:
    low, high = np.quantile(values, TRIM, axis=0), np.quantile(values, 1 - TRIM, axis=0)
    return list(zip(low, high))


def _outside(values: Array, ranges: Sequence[Tuple[float, float]]) -> Array:
    low, high = np.array(ranges).T
    return ((values < low - 1e-9) | (values > high + 1e-9)).any(axis=1)


def _export(model: Any) -> Dict[str, Any]:
    trees = [_tree(stage[0].nodes, 0) for stage in model._predictors]
    return {"start": float(np.ravel(model._baseline_prediction)[0]), "trees": trees}


def _tree(nodes: Array, at: int) -> Any:
    node = nodes[at]
    if node["is_leaf"]:
        return round(float(node["value"]), 10)
    below, above = _tree(nodes, int(node["left"])), _tree(nodes, int(node["right"]))
    return [int(node["feature_idx"]), float(node["num_threshold"]), below, above]


def data_sha256(folder: Path) -> str:
    """One hash over the measured rows and summaries, file by file in order of name."""
    total = sha256()
    for path in sorted(p for p in folder.iterdir() if p.name.startswith(("rows", "summaries"))):
        total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()


def main(argv: Optional[List[str]] = None) -> int:
    """Fit, write, and say how good it is on models that were held out."""
    from slurm_gpumem.training.fit_report import report_lines

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of measured runs (models/ground-truth)")
    parser.add_argument("--rows", type=Path, help="keep the simulated rows there, or take them from there")
    parser.add_argument("--out", type=Path, help="folder to write into (models)")
    args = parser.parse_args(argv)
    folder = args.data or data_path("models", FOLDER)
    out = args.out or folder.parent
    found = rows(load_ground_truth(folder), args.rows)
    whole, parts = fit_all(found)
    whole["card"] = {
        "data": f"{len(found)} rows of {len({row.key for row in found})} runs, "
        f"{len({row.model for row in found})} models, measured on an H200",
        "data_sha256": data_sha256(folder),
        "command": "python -m slurm_gpumem.training.fit",
        "seed": SEED,
        "folds": folds.FOLDS,
        "coverage": COVERAGE,
    }
    text = json.dumps(whole, separators=(",", ":"))
    (out / estimator.FILE).write_text(text + "\n")
    # mtime 0: the same fit is the same file.
    packed = gzip.compress(json.dumps(parts, separators=(",", ":")).encode(), mtime=0)
    (out / folds.FILE).write_bytes(packed)
    report = report_lines(found, parts, sha256((text + "\n").encode()).hexdigest(), whole["card"])
    (out / "correction.md").write_text("\n".join(report) + "\n")
    print("\n".join(report))
    return 0


def fit_all(found: Sequence[Row]) -> Tuple[Dict[str, Any], List[Dict[str, Any]]]:
    """The model of all rows, and one without each fold."""
    data = Data(found)
    parts = [fit(data, data.fold != number) for number in range(folds.FOLDS)]
    return fit(data, np.ones(len(found), dtype=bool)), parts


if __name__ == "__main__":
    raise SystemExit(main())
