"""Fit the learned correction and its spread on measured runs: `python -m lab.fit.correction`.

Writes models/correction.json (fitted on all rows), models/relatives.json (what each run teaches about like
ones) and lab/data/folds/correction.json.gz (one fit a fold, without that fold's models; `gpumem
accuracy` scores with these), and prints the cross-validated figures.
"""

from __future__ import annotations

import argparse
import gzip
import json
from hashlib import sha256
from pathlib import Path
from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Tuple

import numpy as np
from joblib import Parallel, delayed
from sklearn.ensemble import HistGradientBoostingRegressor

from lab.fit import folds
from lab.fit.correction_rows import Row, rows
from lab.fit.relatives_file import to_json
from lab.fit.relatives_of_rows import NeighboursOfRows, relatives_of
from lab.ground_truth import load_ground_truth
from lab.places import CORRECTION_FOLDS, GROUND_TRUTH, MODELS, shown, under
from slurm_gpumem.estimators.corrected import estimator, relatives
from slurm_gpumem.estimators.corrected.features import KNOWN
from slurm_gpumem.estimators.corrected.relatives import NeighbourRuns
from slurm_gpumem.estimators.trees import FORMAT

SEED = 0
CLIP = 1.0
"""A residual beyond a factor of e teaches nothing: the text does not show what was run."""
FLOOR = 0.01
"""Residuals below 1 % are as good as none."""
CENTER_TREES, SPREAD_TREES = 200, 80
SHAPELESS = 0.05
"""What a row without shapes counts. Texts of depth 3 gained a point of right shard counts, others nothing."""
SHRINK = 0.5
"""So much of what the centre's trees say counts: on architectures that they did not see, that is nearer."""
Array = Any


def fit_trees(
    values: Array,
    target: Array,
    iterations: int,
    weights: Array = None,
    quantile: Optional[float] = None,
) -> Any:
    """One ensemble of shallow trees."""
    return HistGradientBoostingRegressor(
        loss="absolute_error" if quantile is None else "quantile",
        quantile=quantile,
        max_depth=3,
        max_iter=iterations,
        learning_rate=0.06,
        min_samples_leaf=20,
        early_stopping=False,
        random_state=SEED,
    ).fit(values, target, sample_weight=weights)


class Data:
    """The rows as arrays: `values` and what is indexed by `row` hold one line a point, the rest one a row."""

    def __init__(self, found: Sequence[Row], told: Sequence[Sequence[NeighbourRuns]]) -> None:
        points = [
            (index, point, runs)
            for index, row in enumerate(found)
            for point, runs in zip(row.points, told[index])
        ]
        self.row = np.array([index for index, _, _ in points])
        self.values = np.array([(*point.features, *runs.values) for _, point, runs in points])
        self.share = np.array([point.share for _, point, _ in points])
        self.total = np.array([point.total_mib * (1 + runs.beyond) for _, point, runs in points])
        """As relatives move it."""
        self.real = np.array([row.real_mib for row in found])
        self.target = np.log(self.real / self.summed(self.total))
        self.fold = np.array([folds.fold_of_name(row.model) for row in found])
        self.family = np.array([row.family for row in found])
        self.group = np.array([estimator.group_of(row.points[0].features) for row in found])
        self.weight = self.share * np.where(self.group == "shapeless", SHAPELESS, 1.0)[self.row]
        self.moved = np.array([row.moved_mib for row in found])

    def summed(self, values: Array) -> Array:
        """What the points' values (times their shares) make together, row by row."""
        return np.bincount(self.row, weights=self.share * values, minlength=len(self.real))

    def residual(self, center: Array) -> Array:
        """log(real / corrected), row by row."""
        return np.log(self.real / self.summed(self.total * np.exp(center)))


class Centers:
    """Centres by the folds that they were fitted without."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self._made: Dict[FrozenSet[int], Any] = {}

    def without(self, *left_out: int) -> Any:
        """The trees fitted on all rows but these folds'."""
        key = frozenset(left_out)
        if key not in self._made:
            data = self._data
            rest = ~np.isin(data.fold, list(key))[data.row]
            target, weights = _target(data)[rest], data.weight[rest]
            self._made[key] = fit_trees(data.values[rest], target, CENTER_TREES, weights)
        return self._made[key]


def fit(data: Data, *left_out: int) -> Dict[str, Any]:
    """Centre and spread from all folds but these; the spread from centres that had not seen their rows."""
    centers = Centers(data)
    center = crossed(data, centers, left_out)
    inside = ~np.isin(data.fold, left_out)[data.row]
    values = data.values[inside]
    last = fit_trees(
        _with_center(values, center[inside]), _size(data, center)[inside], SPREAD_TREES, data.weight[inside]
    )
    return {
        "format": FORMAT,
        "features": list(KNOWN),
        "center": export_trees(centers.without(*left_out), SHRINK),
        "spread": export_trees(last),
    }


def crossed(data: Data, centers: Centers, left_out: Sequence[int]) -> Array:
    """Centre of every point of the other folds, by fits without its fold."""
    parts = data.fold[data.row]
    inside = ~np.isin(parts, left_out)
    center = np.zeros(len(data.row))
    for number in (int(number) for number in np.unique(parts[inside])):
        own = parts == number
        center[own] = SHRINK * centers.without(number, *left_out).predict(data.values[own])
    return center


def _target(data: Data) -> Array:
    """log(real / moved by relatives) of the row that a point is part of, for each point."""
    return np.clip(data.target, -CLIP, CLIP)[data.row]


def _with_center(values: Array, center: Array) -> Array:
    """What the spread looks at: the features, and how far the centre moves the job."""
    return np.column_stack([values, np.abs(center)])


def _size(data: Data, center: Array) -> Array:
    """log of how far from its centre a row is, for each of its points."""
    return np.log(np.maximum(np.abs(data.residual(center)), FLOOR))[data.row]


def export_trees(model: Any, scale: float = 1.0) -> Dict[str, Any]:
    """A fitted ensemble as correction/trees.py reads it, its answers times `scale`."""
    trees = [_tree(stage[0].nodes, 0, scale) for stage in model._predictors]
    return {"start": scale * float(np.ravel(model._baseline_prediction)[0]), "trees": trees}


def _tree(nodes: Array, at: int, scale: float) -> Any:
    node = nodes[at]
    if node["is_leaf"]:
        return scale * round(float(node["value"]), 10)
    below, above = _tree(nodes, int(node["left"]), scale), _tree(nodes, int(node["right"]), scale)
    return [int(node["feature_idx"]), float(node["num_threshold"]), below, above]


def data_sha256(folder: Path) -> str:
    """One hash over the measured rows and summaries, file by file in order of name."""
    total = sha256()
    for path in sorted(p for p in folder.iterdir() if p.name.startswith(("rows", "summaries"))):
        total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()


def main(argv: Optional[List[str]] = None) -> int:
    """Fit, write, and say how good it is on models that were held out."""
    from lab.fit.report import report_lines

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help=f"folder of measured runs ({shown(GROUND_TRUTH)})")
    parser.add_argument("--rows", type=Path, help="keep the simulated rows there, or take them from there")
    parser.add_argument("--out", type=Path, help="write below this folder instead of the repository")
    args = parser.parse_args(argv)
    folder = args.data or GROUND_TRUTH
    found = rows(load_ground_truth(folder), args.rows)
    known = relatives_of(found)
    neighbours = NeighboursOfRows(found, known)
    whole, parts = fit_all(found, neighbours)
    whole["card"] = {
        "data": f"{len(found)} rows of {len({row.key for row in found})} runs, "
        f"{len({row.model for row in found})} models, measured on an H200",
        "data_sha256": data_sha256(folder),
        "command": "python -m lab.fit.correction",
        "seed": SEED,
        "folds": folds.FOLDS,
    }
    text = json.dumps(whole, separators=(",", ":"))
    under(args.out, MODELS / estimator.FILE).write_text(text + "\n")
    # Not packed: every estimate reads it.
    under(args.out, MODELS / relatives.FILE).write_text(
        json.dumps(to_json(known), separators=(",", ":")) + "\n"
    )
    # mtime 0: the same fit is the same file.
    packed = gzip.compress(json.dumps(parts, separators=(",", ":")).encode(), mtime=0)
    under(args.out, CORRECTION_FOLDS).write_bytes(packed)
    report = report_lines(found, neighbours, parts, sha256((text + "\n").encode()).hexdigest(), whole["card"])
    under(args.out, MODELS / "correction.md").write_text("\n".join(report) + "\n")
    print("\n".join(report))
    return 0


def fit_all(
    found: Sequence[Row], neighbours: NeighboursOfRows
) -> Tuple[Dict[str, Any], List[Dict[str, Any]]]:
    """The model of all rows, and one without each fold."""
    asked = [delayed(fit)(Data(found, neighbours.without(None)))]
    asked += [delayed(fit)(Data(found, neighbours.without(fold)), fold) for fold in range(folds.FOLDS)]
    whole, *parts = Parallel(n_jobs=-1)(asked)
    return whole, parts


if __name__ == "__main__":
    raise SystemExit(main())
