"""Fit utilization on jobs measured alone, and interference on sets: `make fit-utilization`.

Writes models/utilization.json (fitted on all rows), models/lab/folds/utilization.json.gz (one fit a fold,
without that fold's models; `gpumem accuracy` scores with these) and the card models/utilization.md.
"""

from __future__ import annotations

import argparse
import gzip
import json
from hashlib import sha256
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
from joblib import Parallel, delayed
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge

from slurm_gpumem.lab.fit.folds import FOLDS
from slurm_gpumem.lab.fit.roofline import fit_coefficients
from slurm_gpumem.lab.fit.utilization_rows import UtilizationRow, rows_of, rows_of_traces
from slurm_gpumem.lab.places import GROUND_TRUTH, MODELS, UTILIZATION_FOLDS, shown, under
from slurm_gpumem.lab.score.gpuutilnet_table import BUSY, class_of, dataset_of
from slurm_gpumem.lab.traced_work import load_traced
from slurm_gpumem.lab.utilization_runs import SOLO_FILES, load_solo, load_texts
from slurm_gpumem.utilization.features import NAMES, features, logit
from slurm_gpumem.utilization.model import FILE, FORMAT, STEEPEST, TARGETS
from slurm_gpumem.utilization.predict import SUMMARY, TRACE, plain_answers
from slurm_gpumem.utilization.roofline import rates_of, step_times

SEED = 0
COVERAGE = 0.8
"""Share of jobs that an interval is meant to hold."""
TAILS = ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2)
OUTSIDE = 1.5
"""How much wider the intervals are outside the range of the measurements."""
TRIM = 0.002
CLIP = 2.5
"""A difference in log-odds beyond this teaches nothing: the text does not show what was run."""
ITERATIONS = 40
LEARNING_RATE = 0.05
LEAF = 12
RIDGE = 100.0
"""How strongly the lines' slopes are held at nothing."""
LINE_CLIP = 1.2
"""What a line is fitted on: differences up to this, lest single jobs turn it."""
LEANS = tuple(round(0.05 * step, 2) for step in range(17))
Array = Any


def fit(rows: Sequence[UtilizationRow]) -> Dict[str, Any]:
    """Coefficients, trees, intervals and ranges from these rows."""
    coefficients = fit_coefficients([row for row in rows if row.fullest and not row.seen.shapeless])
    values, rest = _table(rows, coefficients)
    middles, scales = values.mean(axis=0), values.std(axis=0) + 1e-9
    scaled = np.clip((values - middles) / scales, -STEEPEST, STEEPEST)
    fold = np.array([row.fold for row in rows])
    weight = _weights(rows)
    fullest = np.array([row.fullest for row in rows])
    shapeless = np.array([row.seen.shapeless for row in rows])
    targets: Dict[str, Dict[str, Any]] = {}
    lean = 0.0
    for name in TARGETS:
        # Intervals from rows that their trees never saw, one text a job.
        off = rest[name] - _crossed(values, scaled, rest[name], weight, fold)
        if name == "sm_active":
            lean = _lean([row for row in rows if row.fullest], off[fullest])
        low, high = np.quantile(off[fullest], TAILS)
        line = _line(scaled, rest[name], weight)
        fitted = _export(_trees(values, rest[name] - line.predict(scaled), weight), line)
        targets[name] = {**fitted, "low": float(low), "high": float(high)}
        if shapeless.any():
            targets[name]["shapeless"] = [float(edge) for edge in np.quantile(off[shapeless], TAILS)]
    ranges = np.quantile(values, [TRIM, 1 - TRIM], axis=0).T
    return {
        "coefficients": coefficients,
        "middles": middles.tolist(),
        "scales": scales.tolist(),
        "targets": targets,
        "ranges": ranges.tolist(),
        "lean": lean,
    }


def _lean(rows: Sequence[UtilizationRow], off: Array) -> float:
    """The lift at which the lower of two shares is highest: classes that are right, busy jobs that are found.

    The sum of both would let one busy job outweigh a dozen others, as rare as they are.
    """
    scores = []
    for lean in LEANS:
        right = found = busy = 0
        for row, missed in zip(rows, off):
            dataset, true = dataset_of(row.run.family), row.run.values["sm_active"]
            got = logit(true) - missed
            said = class_of(dataset, "sm_active", 100 / (1 + np.exp(-got)))
            if class_of(dataset, "sm_active", 100 / (1 + np.exp(-got - lean))) == BUSY:
                said = BUSY
            real = class_of(dataset, "sm_active", 100 * true)
            right += said == real
            busy += real == BUSY
            found += real == BUSY and said == BUSY
        accuracy, recall = right / len(rows), found / max(busy, 1)
        scores.append((min(accuracy, recall), accuracy + recall))
    # With its neighbours: a few busy jobs must not decide between a twentieth more or less.
    smooth = [np.mean(scores[max(0, place - 1) : place + 2], axis=0) for place in range(len(LEANS))]
    return LEANS[max(range(len(LEANS)), key=lambda place: tuple(smooth[place]))]


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


def _line(scaled: Array, target: Array, weight: Array) -> Any:
    return Ridge(RIDGE).fit(scaled, np.clip(target, -LINE_CLIP, LINE_CLIP), sample_weight=weight)


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


def _crossed(values: Array, scaled: Array, target: Array, weight: Array, fold: Array) -> Array:
    found = np.zeros(len(target))
    for number in np.unique(fold):
        held = fold == number
        if held.all():
            return found
        line = _line(scaled[~held], target[~held], weight[~held])
        rest = target[~held] - line.predict(scaled[~held])
        trees = _trees(values[~held], rest, weight[~held])
        found[held] = line.predict(scaled[held]) + trees.predict(values[held])
    return found


def _export(model: Any, line: Any) -> Dict[str, Any]:
    trees = [_tree(stage[0].nodes, 0) for stage in model._predictors]
    start = float(np.ravel(model._baseline_prediction)[0]) + float(line.intercept_)
    slopes = [round(float(slope), 8) for slope in line.coef_]
    return {"start": round(start, 8), "slopes": slopes, "trees": trees}


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
    chosen = [rows, *([row for row in rows if row.fold != number] for number in range(FOLDS))]
    whole, *parts = Parallel(n_jobs=-1)(delayed(fit)(some) for some in chosen)
    return whole, parts


def data_sha256(folder: Path, prefixes: Tuple[str, ...] = SOLO_FILES) -> str:
    """One hash over measured jobs (or sets), file by file in order of name."""
    total = sha256()
    for path in sorted(p for p in folder.iterdir() if p.name.startswith(prefixes)):
        total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()


def main(argv: Optional[List[str]] = None) -> int:
    """Fit, write, and say how good it is on models that were held out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help=f"folder of measured jobs ({shown(GROUND_TRUTH)})")
    parser.add_argument("--out", type=Path, help="folder to write into instead of models")
    parser.add_argument("--card", action="store_true", help="fit nothing; write the fitted files' card again")
    args = parser.parse_args(argv)
    folder = args.data or GROUND_TRUTH
    out = args.out or MODELS
    runs = load_solo(folder)
    rows = rows_of(runs, load_texts({run.summary: None for run in runs}))
    traced = rows_of_traces(runs, load_traced(runs))
    if args.card:
        text = (out / FILE).read_text()
        files = json.loads(gzip.decompress(under(out, UTILIZATION_FOLDS).read_bytes()))
        _write_card(out, [*rows, *traced], files, json.loads(text)["card"], text)
        return 0
    by_source = {SUMMARY: rows}
    if traced:
        by_source[TRACE] = traced
    whole: Dict[str, Any] = {}
    parts: List[Dict[str, Any]] = [{} for _ in range(FOLDS)]
    for source, members in by_source.items():
        whole[source], without = fit_all(members)
        for part, fitted in zip(parts, without):
            part[source] = fitted
    card = {
        "data": f"{len(runs)} jobs of {len({run.model for run in runs})} models, each alone on an H200",
        "data_sha256": data_sha256(folder),
        "command": "python -m slurm_gpumem.lab.fit.utilization",
        "seed": SEED,
        "folds": FOLDS,
    }
    text = json.dumps(as_file(whole, card), separators=(",", ":")) + "\n"
    (out / FILE).write_text(text)
    files = [as_file(part) for part in parts]
    packed = json.dumps(files, separators=(",", ":")).encode()
    under(out, UTILIZATION_FOLDS).write_bytes(gzip.compress(packed, mtime=0))
    _write_card(out, [*rows, *traced], files, card, text)
    return 0


def _write_card(
    out: Path, rows: Sequence[UtilizationRow], files: List[Any], card: Dict[str, Any], text: str
) -> None:
    from slurm_gpumem.lab.fit.utilization_card import card_lines

    lines = card_lines(rows, files, card, sha256(text.encode()).hexdigest())
    (out / "utilization.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    raise SystemExit(main())
