"""Compare ways to correct and to bound on the same folds: `python -m lab.fit.compare`.

Every way is fitted without the models (or, second table, without the whole families and without any
relatives) that it is scored on, from torchinfo's texts with all layers. docs/developer/fitting.md holds the
output.
"""

from __future__ import annotations

import argparse
from functools import partial
from hashlib import sha1
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lab.fit.correction import CLIP, FLOOR, SEED, Array, Data
from lab.fit.correction_rows import rows
from lab.fit.relatives_of_rows import NeighboursOfRows, relatives_of
from lab.ground_truth import load_ground_truth
from lab.places import GROUND_TRUTH, shown
from slurm_gpumem.estimators.corrected.features import KNOWN
from slurm_gpumem.estimators.corrected.relatives import neighbour_runs

SHARD_MIB = 1024
ASKED = 0.98
SHARPER = 1.3
TOOL = "torchinfo_full"
TAKEN = "200 trees of depth 3 (taken)"
FAMILY_PARTS = 6
_SIZES = ("log_total", "log_tensor_mib")
_CHANGING = (
    *_SIZES,
    *(name for name in KNOWN if name.startswith(("share_", "peak_in"))),
    *("log_reserved_ratio", "largest_share"),
)
_MOST_STEPS, _MOST_MARGIN, _HALVINGS = 1000.0, 20.0, 40
Fit = Callable[[Array, Array, Array], Any]


def trees(
    values: Array,
    target: Array,
    weights: Array,
    *,
    loss: str = "absolute_error",
    depth: int = 3,
    iterations: int = 200,
    quantile: Optional[float] = None,
) -> Any:
    """Gradient-boosted trees."""
    model = HistGradientBoostingRegressor(
        loss=loss,
        quantile=quantile,
        max_depth=depth,
        max_iter=iterations,
        learning_rate=0.06,
        min_samples_leaf=20,
        early_stopping=False,
        random_state=SEED,
    )
    return model.fit(values, target, sample_weight=weights)


def linear(values: Array, target: Array, weights: Array) -> Any:
    """Ridge regression."""
    return make_pipeline(StandardScaler(), Ridge(10.0)).fit(values, target, ridge__sample_weight=weights)


class _Networks:
    """The mean of three small networks."""

    def __init__(self, values: Array, target: Array, weights: Array) -> None:
        self._members = [
            make_pipeline(
                StandardScaler(),
                MLPRegressor(hidden_layer_sizes=(32, 32), alpha=0.01, max_iter=60, random_state=seed),
            ).fit(values, target)
            for seed in range(3)
        ]

    def predict(self, values: Array) -> Array:
        return np.mean([member.predict(values) for member in self._members], axis=0)


def held_out(data: Data, split: Array, target: Array, columns: List[int], fit: Fit) -> Array:
    """A prediction for every point by a fit without its part."""
    parts = split[data.row]
    result = np.zeros(len(data.row))
    for part in np.unique(parts):
        held = parts == part
        model = fit(data.values[~held][:, columns], target[~held], data.share[~held])
        result[held] = model.predict(data.values[held][:, columns])
    return result


def centers(data: Data, split: Array) -> Iterator[Tuple[str, Array]]:
    """The ways to correct, one after the other."""
    target = np.clip(data.target, -CLIP, CLIP)[data.row]
    every = list(range(len(KNOWN)))
    sizeless = [index for index in every if KNOWN[index] not in _SIZES]
    fixed = [index for index in every if KNOWN[index] not in _CHANGING]
    ways: Dict[str, Tuple[List[int], Fit]] = {
        TAKEN: (every, trees),
        "300 trees of depth 2": (every, partial(trees, depth=2, iterations=300)),
        "200 trees of depth 5": (every, partial(trees, depth=5)),
        "200 trees of depth 3, squared loss": (every, partial(trees, loss="squared_error")),
        "200 trees, no sizes": (sizeless, trees),
        "200 trees, nothing that changes with the batch": (fixed, trees),
        "linear (ridge)": (every, linear),
        "3 networks of 32 x 32": (every, _Networks),
    }
    yield "no correction", np.zeros(len(data.row))
    for name, (columns, fit) in ways.items():
        yield name, held_out(data, split, target, columns, fit)


def bounds(data: Data, split: Array, center: Array) -> Dict[str, Array]:
    """The ways to bound: a request for every row, each set to hold ASKED of the others."""
    residual = data.residual(center)
    every = list(range(len(KNOWN)))
    size = np.log(np.maximum(np.abs(residual), FLOOR))[data.row]
    upper = np.log(np.maximum(residual, FLOOR))[data.row]
    capped = np.clip(residual, -0.5, 0.7)[data.row]
    spread = np.exp(held_out(data, split, size, every, partial(trees, iterations=80)))
    above = np.exp(held_out(data, split, upper, every, partial(trees, loss="squared_error", iterations=80)))
    shapes: Dict[str, Array] = {
        "one margin for all": np.ones(len(spread)),
        "spread of the upper side": above,
        "spread of both sides": spread,
        f"spread of both sides to the power {SHARPER:g}": spread**SHARPER,
    }
    for share in (0.9, 0.95):
        regression = partial(trees, loss="quantile", quantile=share, iterations=80)
        shapes[f"quantile regression at {share:g}, scaled"] = np.maximum(
            held_out(data, split, capped, every, regression), FLOOR
        )
    made = {name: _calibrated(data, split, center, width) for name, width in shapes.items()}
    made["spread of both sides, up to whole shards"] = _whole(data, made["spread of both sides"])
    return made


def _whole(data: Data, request: Array) -> Array:
    return np.ceil((request + data.moved) / SHARD_MIB) * SHARD_MIB - data.moved


def _calibrated(data: Data, split: Array, center: Array, width: Array) -> Array:
    steps = _steps(data, center, width)
    margin = np.zeros(len(width))
    for part in np.unique(split):
        others = np.sort(steps[split != part])
        step = others[min(len(others), int(np.ceil((len(others) + 1) * ASKED))) - 1]
        held = split[data.row] == part
        margin[held] = max(0.0, step) * width[held]
    return data.summed(data.total * np.exp(center + margin))


def _steps(data: Data, center: Array, width: Array) -> Array:
    """How many widths above its centre each row's request must be to hold what was needed."""
    low, high = np.full(len(data.real), -_MOST_STEPS), np.full(len(data.real), _MOST_STEPS)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        margin = np.minimum(middle[data.row] * width, _MOST_MARGIN)
        held = data.summed(data.total * np.exp(center + margin)) >= data.real
        low, high = np.where(held, low, middle), np.where(held, middle, high)
    return high


def center_line(data: Data, name: str, center: Array) -> str:
    """Median and 90th percentile of the error."""
    errors = np.abs(np.exp(-data.residual(center)) - 1)
    return f"| {name} | {100 * np.median(errors):.1f} | {100 * np.quantile(errors, 0.9):.1f} |"


def bound_line(data: Data, name: str, request: Array) -> str:
    """Below the need, over it in the median, shards as needed or one more."""
    request, real = np.ceil(request - 1e-6) + data.moved, data.real + data.moved
    surplus = np.ceil(request / SHARD_MIB) - np.ceil(real / SHARD_MIB)
    cells = (np.mean(request < real), np.median(request / real - 1), np.mean((surplus == 0) | (surplus == 1)))
    return f"| {name} | " + " | ".join(f"{100 * cell:.1f}" for cell in cells) + " |"


def main(argv: Optional[List[str]] = None) -> int:
    """Print both tables for both ways to split."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help=f"folder of measured runs ({shown(GROUND_TRUTH)})")
    parser.add_argument("--rows", type=Path, help="keep the simulated rows there, or take them from there")
    args = parser.parse_args(argv)
    found = [row for row in rows(load_ground_truth(args.data), args.rows) if row.tool == TOOL]
    families = np.array([int(sha1(row.family.encode()).hexdigest(), 16) % FAMILY_PARTS for row in found])
    told = Data(found, NeighboursOfRows(found, relatives_of(found)).without(None))
    alone = Data(found, [[neighbour_runs((), point.features) for point in row.points] for row in found])
    for title, data, split in (("models", told, told.fold), ("families", alone, families)):
        print(f"Without the {title} that are scored, {len(found):,} rows:\n")
        print("| correction | median | P90 |\n|---|---|---|")
        taken = np.zeros(len(data.row))
        for name, center in centers(data, split):
            taken = center if name == TAKEN else taken
            print(center_line(data, name, center), flush=True)
        print(f"\n| bound ({100 * ASKED:.3g} % asked) | <req | over | 0/+1 |\n|---|---|---|---|")
        for name, request in bounds(data, split, taken).items():
            print(bound_line(data, name, request), flush=True)
        print()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
