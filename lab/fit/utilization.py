"""Fit utilization on jobs measured alone, and interference on sets: `make fit-utilization`.

Writes models/fitted/utilization.json (fitted on all rows), lab/data/folds/utilization.json.gz (one fit a
fold, without that fold's models or without a whole collection of jobs; `make accuracy` scores with these) and
the card models/fitted/utilization.md.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from hashlib import sha256
from math import log
from pathlib import Path
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from joblib import Parallel, delayed
from sklearn.linear_model import Ridge

from lab.fit.folds import ALL_FOLDS, COLLECTIONS, collection_of, is_hand_written
from lab.fit.roofline import Fitted, fit_coefficients, session_of
from lab.fit.utilization_card import card_lines
from lab.fit.utilization_rows import UtilizationRow, rows_of, rows_of_traces
from lab.places import FITTED, UTILIZATION_FOLDS
from lab.score.gpuutilnet_table import BUSY, class_of, dataset_of
from lab.traced_work import load_traced
from lab.utilization_runs import SOLO_FILES, SOLO_FOLDERS, load_solo, load_solo_texts
from slurm_gpumem.utilization.model import (
    FILE,
    FORMAT,
    LEVELS,
    NAMES,
    STEEPEST,
    TARGETS,
    features,
    from_json,
    logit,
)
from slurm_gpumem.utilization.predict import SUMMARY, TRACE, centers, level_of, plain_answers
from slurm_gpumem.utilization.roofline import rates_of, step_times

COVERAGE = 0.8
"""Share of jobs that an interval is meant to hold."""
SHARES = tuple(round(COVERAGE + 0.01 * step, 2) for step in range(19))
"""Shares of the known jobs that an interval may have to hold for that."""
OUTSIDE = 1.5
"""How much wider the intervals are outside the range of the measurements."""
TRIM = 0.002
RIDGE = 100.0
"""How strongly the lines' slopes are held at nothing."""
CLIP = 1.2
"""What a line is fitted on: differences up to this, lest single jobs turn it."""
ENOUGH = 30
"""Texts of a level that its interval needs; with fewer it takes those of others as well."""
SOME = 15
"""Texts from which on a collection counts in full."""
LEAST_SPREAD = 0.1
"""Of sessions' factors of the CPU's time, as logarithms."""
LEANS = tuple(round(0.05 * step, 2) for step in range(17))
_LEVELS = len(LEVELS) + 1
Array = Any
Bands = Dict[Tuple[bool, int], List[float]]


def fit(rows: Sequence[UtilizationRow]) -> Dict[str, Any]:
    """Coefficients, lines and ranges from these rows; bands are still of no width."""
    found = fit_coefficients([row for row in rows if row.fullest])
    values, rest = _table(rows, found)
    middles, scales = values.mean(axis=0), values.std(axis=0) + 1e-9
    scaled = np.clip((values - middles) / scales, -STEEPEST, STEEPEST)
    weight = _weights(rows)
    targets: Dict[str, Dict[str, Any]] = {}
    for name in TARGETS:
        line = Ridge(RIDGE).fit(scaled, np.clip(rest[name], -CLIP, CLIP), sample_weight=weight)
        targets[name] = {
            "start": round(float(line.intercept_), 8),
            "slopes": [round(float(slope), 8) for slope in line.coef_],
            "bands": [[0.0, 0.0]] * (len(LEVELS) + 1),
            "guessed_bands": [[0.0, 0.0]] * (len(LEVELS) + 1),
        }
    ranges = np.quantile(values, [TRIM, 1 - TRIM], axis=0).T
    return {
        "coefficients": found.coefficients,
        "middles": middles.tolist(),
        "scales": scales.tolist(),
        "targets": targets,
        "ranges": ranges.tolist(),
        "host": _host_span(found.sessions.values()),
        "sessions": {name: round(factor, 3) for name, factor in found.sessions.items()},
        "lean": 0.0,
    }


def _host_span(factors: Iterable[float]) -> List[float]:
    """A fast and a slow machine: as far from the usual one as sessions deviate, at least LEAST_SPREAD."""
    spread = max(LEAST_SPREAD, float(np.std(np.log(list(factors)))))
    return [round(float(np.exp(by)), 4) for by in (-spread, spread)]


class HeldOut(NamedTuple):
    """A row as the fit without its fold saw it."""

    row: UtilizationRow
    level: int
    off: Dict[str, Tuple[float, float]]
    """By target: truth less the least and the largest answer (of a fast and a slow machine), in widths
    (OUTSIDE for a job unlike the measured ones)."""
    missed: float
    """Truth less the answer itself, of SM activity."""

    @property
    def collection(self) -> str:
        """Whose rows count together."""
        return collection_of(self.row.run.row)


def _held_out(rows: Sequence[UtilizationRow], parts: Sequence[Dict[str, Any]], source: str) -> List[HeldOut]:
    models = [from_json(as_file({source: part})).sources[source] for part in parts]
    found = []
    for row in rows:
        got = centers(row.work, row.seen, row.run.gpu, models[row.fold])
        wider = OUTSIDE if got.unusual else 1.0
        off = {}
        for name in TARGETS:
            true = _scaled(name, row.run.values[name])
            least, most = got.spans[name]
            off[name] = ((true - least) / wider, (true - most) / wider)
        missed = _scaled("sm_active", row.run.values["sm_active"]) - got.by_target["sm_active"]
        found.append(HeldOut(row, level_of(got.by_target["sm_active"]), off, missed))
    return found


def _with_bands(fitted: Dict[str, Any], held: Sequence[HeldOut]) -> Dict[str, Any]:
    """The fit with its intervals: where jobs of left-out collections lay beside their answers."""
    targets = {}
    for name, target in fitted["targets"].items():
        bands = _bands(held, name, _share_to_hold(held, name))
        ends = {guessed: [bands[guessed, level] for level in range(_LEVELS)] for guessed in (False, True)}
        targets[name] = {**target, "bands": ends[False], "guessed_bands": ends[True]}
    library = [one for one in held if one.row.fullest and not is_hand_written(one.row.run.row)]
    lean = _lean([one.row for one in library], [one.missed for one in library])
    return {**fitted, "targets": targets, "lean": lean}


def _share_to_hold(held: Sequence[HeldOut], name: str) -> float:
    """The share of jobs that bands must hold so that they hold COVERAGE of a collection they do not know.

    Jobs of one collection resemble each other more than those of the next: bands that held 80 % of all others
    held 71 % of a left-out collection in the mean.
    """
    strangers = [name for name in COLLECTIONS if any(one.collection == name for one in held)]
    for share in SHARES:
        inside = []
        for stranger in strangers:
            bands = _bands([one for one in held if one.collection != stranger], name, share)
            own = [one for one in held if one.collection == stranger]
            inside.append(sum(_holds(bands, one, name) for one in own) / len(own))
        if not inside or sum(inside) / len(inside) >= COVERAGE:
            return share
    return SHARES[-1]


def _holds(bands: Bands, one: HeldOut, name: str) -> bool:
    low, high = bands[one.row.seen.guessed, one.level]
    above, below = one.off[name]
    return (above >= low or above >= 0) and (below <= high or below <= 0)


def _bands(held: Sequence[HeldOut], name: str, share: float) -> Bands:
    """By whether layers are guessed and by level: the ends that hold that share of these jobs."""
    found: Bands = {}
    for level in range(_LEVELS):
        alike = [one for one in held if one.level == level]
        for guessed in (False, True):
            own = [one for one in alike if one.row.seen.guessed == guessed]
            chosen = own if len(own) >= ENOUGH else alike if len(alike) >= ENOUGH else held
            found[guessed, level] = _band(chosen, name, share)
    return found


def _band(held: Sequence[HeldOut], name: str, share: float) -> List[float]:
    """The ends that hold that share, where each collection counts as much as another.

    Hundreds of jobs of one collection say little more of the next one than SOME do.
    """
    counts = Counter(one.collection for one in held)
    weights = [1 / max(SOME, counts[one.collection]) for one in held]
    low = _weighted_quantile([one.off[name][0] for one in held], weights, (1 - share) / 2)
    high = _weighted_quantile([one.off[name][1] for one in held], weights, (1 + share) / 2)
    return [round(low, 5), round(high, 5)]


def _weighted_quantile(values: Sequence[float], weights: Sequence[float], share: float) -> float:
    order = np.argsort(values)
    heavy = np.array(weights)[order]
    places = (np.cumsum(heavy) - heavy / 2) / heavy.sum()
    return float(np.interp(share, places, np.array(values)[order]))


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


def _table(rows: Sequence[UtilizationRow], found: Fitted) -> Tuple[Array, Dict[str, Array]]:
    """Features, and by target what the roofline leaves to learn; the CPU as fast as in the row's session."""
    values = []
    rest: Dict[str, List[float]] = {name: [] for name in TARGETS}
    for row in rows:
        rates = rates_of(row.run.gpu)
        slower = found.sessions.get(session_of(row), 1.0)
        times = step_times(row.work, rates._replace(host=rates.host * slower), found.coefficients)
        values.append(features(row.work, times, row.seen))
        for name, plain in plain_answers(times).items():
            rest[name].append(_scaled(name, row.run.values[name]) - plain)
    return np.array(values), {name: np.array(found) for name, found in rest.items()}


def _scaled(name: str, true: float) -> float:
    """A measured value in the scale that the learned part adds to."""
    return log(true) if name == "step_seconds" else logit(true)


def _weights(rows: Sequence[UtilizationRow]) -> Array:
    """A job counts once, however many texts it has; the fullest as much as all others together."""
    others: Dict[str, int] = {}
    for row in rows:
        if not row.fullest:
            others[row.run.key] = others.get(row.run.key, 0) + 1
    return np.array([1.0 if row.fullest else 1.0 / others[row.run.key] for row in rows])


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


def fit_all(rows: Sequence[UtilizationRow], source: str) -> Tuple[Dict[str, Any], List[Dict[str, Any]]]:
    """The model of all rows, and one without each fold; the intervals of each from jobs of other folds."""
    known = [row for row in rows if not row.unknown]
    chosen = [known, *([row for row in known if row.fold != number] for number in range(ALL_FOLDS))]
    whole, *parts = Parallel(n_jobs=-1)(delayed(fit)(some) for some in chosen)
    held = _held_out(known, parts, source)
    without = [
        _with_bands(part, [one for one in held if one.row.fold != number])
        for number, part in enumerate(parts)
    ]
    return _with_bands(whole, held), without


def data_sha256(folders: Sequence[Path], prefixes: Tuple[str, ...] = SOLO_FILES) -> str:
    """One hash over measured jobs (or sets), file by file in order of name."""
    total = sha256()
    for folder in folders:
        for path in sorted(p for p in folder.iterdir() if p.name.startswith(prefixes)):
            total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()


def main() -> int:
    """Fit, write, and say how good it is on models that were held out."""
    path = FITTED / FILE
    runs = load_solo()
    by_source = {
        SUMMARY: rows_of(runs, load_solo_texts(runs)),
        TRACE: rows_of_traces(runs, load_traced(runs)),
    }
    whole: Dict[str, Any] = {}
    parts: List[Dict[str, Any]] = [{} for _ in range(ALL_FOLDS)]
    for source, members in by_source.items():
        whole[source], without = fit_all(members, source)
        for part, fitted in zip(parts, without):
            part[source] = fitted
    card = {
        "data": f"{len(runs)} jobs of {len({run.model for run in runs})} models, each alone on an H200",
        "data_sha256": data_sha256(SOLO_FOLDERS),
        "command": "python -m lab.fit.utilization",
        "folds": ALL_FOLDS,
        "sessions": whole[TRACE]["sessions"],
    }
    text = json.dumps(as_file(whole, card), separators=(",", ":")) + "\n"
    path.write_text(text)
    files = [as_file(part) for part in parts]
    packed = json.dumps(files, separators=(",", ":")).encode()
    UTILIZATION_FOLDS.write_bytes(gzip.compress(packed, mtime=0))
    rows = [row for members in by_source.values() for row in members]
    lines = card_lines(rows, files, card, sha256(text.encode()).hexdigest())
    path.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
