"""Train networks like GPUMemNet's on our measured runs and store what they say of models they did not see.

    python -m lab.gpumemnet.refit [--data DIR] [--out DIR]

Two things come of it: accuracy and F1 in the published form, on its three families of generated
networks, and predictions for every run, for `gpumem accuracy`. Both by three folds split by model.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from hashlib import sha1
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import torch

from lab.gpumemnet import nets
from lab.gpumemnet.f1 import f1_score
from lab.gpumemnet.rows import FAMILIES, NetRow, net_rows
from lab.ground_truth import load_ground_truth
from lab.places import PREDICTIONS, shown
from lab.score.predictions import Predictions, save_predictions

KINDS = ("mlp", "transformer")
FOLDS = 3
GIB = 1024
BIN_GIB = {"mlp": 1, "cnn": 8, "transformer": 8}
"""The published widths of a class; MLPs also in classes of 2."""
PUBLISHED = {
    ("mlp", "mlp", 1): (0.95, 0.93),
    ("mlp", "mlp", 2): (0.97, 0.96),
    ("mlp", "transformer", 1): (0.97, 0.96),
    ("mlp", "transformer", 2): (0.98, 0.97),
    ("cnn", "mlp", 8): (0.83, 0.83),
    ("cnn", "transformer", 8): (0.81, 0.81),
    ("transformer", "mlp", 8): (0.88, 0.88),
    ("transformer", "transformer", 8): (0.86, 0.86),
}
"""Accuracy and F1 of the paper's table, by data set, estimator and class width in GB."""


@dataclass(frozen=True)
class Figure:
    """One line of the published table, on our data."""

    family: str
    kind: str
    bin_gib: int
    rows: int
    classes: int
    accuracy: float
    f1: float
    majority: float
    """Accuracy of always saying the most frequent class."""


def main(argv: Sequence[str] = ()) -> int:
    """Entry point of the command."""
    parser = argparse.ArgumentParser(prog="python -m lab.gpumemnet.refit", description=__doc__)
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of measured runs")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"default: {shown(PREDICTIONS)}")
    parser.add_argument("--kind", choices=KINDS, help="only this estimator (default: both)")
    args = parser.parse_args(list(argv))
    torch.set_num_threads(1)
    rows = net_rows(load_ground_truth(args.data))
    out = args.out or PREDICTIONS
    figures: List[Figure] = []
    for kind in [args.kind] if args.kind else KINDS:
        started = time.monotonic()
        own = published_figures(rows, kind)
        figures += own
        predictions = Predictions(f"gpumemnet-refit-{kind}", predict(rows, kind), card(own, rows))
        path = save_predictions(predictions, out)
        _progress(f"{path.name}: {len(predictions.rows)} runs, {time.monotonic() - started:.0f} s")
    print("\n".join(table(figures)))
    return 0


def fold_of(row: NetRow) -> int:
    """The fold that is trained without this row's model and its namesakes."""
    return int(sha1(row.group.encode()).hexdigest(), 16) % FOLDS


def held_out(rows: Sequence[NetRow], kind: str, bin_mib: int) -> List[int]:
    """Each row's class, told by an ensemble that was trained without its model."""
    told: Dict[str, int] = {}
    for fold in range(FOLDS):
        test = [row for row in rows if fold_of(row) == fold]
        train = [row for row in rows if fold_of(row) != fold]
        if test and train:
            told.update(zip((row.key for row in test), nets.classify(kind, train, test, bin_mib)))
    return [told.get(row.key, 0) for row in rows]


def published_figures(rows: Sequence[NetRow], kind: str) -> List[Figure]:
    """Accuracy and F1 on the generated families, in the published classes."""
    figures = []
    for family, data_set, bin_gib in sorted(key for key in PUBLISHED if key[1] == kind):
        own = [row for row in rows if row.synthetic and row.family == family]
        if len({fold_of(row) for row in own}) < FOLDS:
            continue
        told = held_out(own, kind, bin_gib * GIB)
        real = [row.real_mib // (bin_gib * GIB) for row in own]
        accuracy = sum(a == b for a, b in zip(told, real)) / len(own)
        most = max(real.count(value) for value in set(real)) / len(own)
        figures.append(
            Figure(family, data_set, bin_gib, len(own), len(set(real)), accuracy, f1_score(told, real), most)
        )
        _progress(f"{family}, {kind}, {bin_gib} GiB: accuracy {accuracy:.2f}")
    return figures


def predict(rows: Sequence[NetRow], kind: str) -> Dict[str, Tuple[int, int]]:
    """Peak (the class's middle) and request (its upper edge) for every run."""
    found: Dict[str, Tuple[int, int]] = {}
    for family in FAMILIES:
        own = [row for row in rows if row.family == family]
        width = BIN_GIB[family] * GIB
        for row, told in zip(own, held_out(own, kind, width) if own else ()):
            found[row.key] = (told * width + width // 2, (told + 1) * width)
        _progress(f"{family}, {kind}: {len(own)} runs")
    return found


def card(figures: Sequence[Figure], rows: Sequence[NetRow]) -> Dict[str, Any]:
    """What a reader of the stored predictions should know."""
    return {
        "how": "python -m lab.gpumemnet.refit; lab/data/predictions/gpumemnet-refit.md",
        "rows": len(rows),
        "folds": f"{FOLDS}, split by model",
        "seed": nets.SEED,
        "figures": [
            [f.family, f.bin_gib, f.rows, round(f.accuracy, 4), round(f.f1, 4), round(f.majority, 4)]
            for f in figures
        ],
    }


def table(figures: Sequence[Figure]) -> List[str]:
    """The published table with ours beside it."""
    lines = ["data set     estimator    class   runs  accuracy    F1  always the most frequent  published"]
    for f in figures:
        accuracy, f1 = PUBLISHED[f.family, f.kind, f.bin_gib]
        lines.append(
            f"{f.family:<12} {f.kind:<12} {f.bin_gib} GiB  {f.rows:>5}  {f.accuracy:>8.2f}  {f.f1:.2f}  "
            f"{f.majority:>24.2f}  {accuracy:.2f} / {f1:.2f}"
        )
    return lines


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
