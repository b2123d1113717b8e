"""Fit which gradients of weights cuDNN computes by Fourier transforms, on operators that `probe` measured.

    python -m lab.fit.fourier [--check]

Reads operators.jsonl.xz and narrow.jsonl.xz of lab/data/ground-truth and writes models/cudnn-fourier.bin:
trees that say how likely a call is one (estimators/workspaces/fourier.py; how much it takes is a rule, not
fitted). With --check it prints how well they do on shapes, and on pairs of channels, that they have not seen,
beside the trees of `fit.workspaces` fitted on the same calls, and how well the packaged ones do on
narrow-check.jsonl.xz, which no fit reads; it writes nothing.
"""

from __future__ import annotations

import argparse
import sys
from array import array
from typing import Any, Dict, List, Optional, Sequence
from zlib import crc32

from lab.command import exit_code, require
from lab.fit.workspace_files import Column, to_bytes
from lab.fit.workspaces import FOLDS, SCRAP, Columns, Grower, as_read, columns_of
from lab.fit.workspaces import TREES as USUAL_TREES
from lab.places import MODELS, NARROW, NARROW_CHECK, OPERATORS, shown
from lab.probe.measured_calls import MeasuredCall, load_calls
from slurm_gpumem.estimators.workspaces.convolutions import FEATURES, base_bytes, features, usual_bytes
from slurm_gpumem.estimators.workspaces.fourier import FEATURES as BESIDE
from slurm_gpumem.estimators.workspaces.fourier import (
    FILE,
    FORMAT,
    FROM,
    picked,
    weight_bytes,
    with_transforms,
)
from slurm_gpumem.estimators.workspaces.tree import COLUMNS
from slurm_gpumem.summaries.trace_types import CALLS

TREES, LEAF, DEPTH, SHARE = 15, 3, 16, 0.5
"""Of the forest; fewest cases of a leaf; deepest; features that a split looks at."""
LARGE_BYTES, LARGE_TIMES = 64 << 20, 4
"""A call counts as large from this workspace on, and from this many times its input and output."""
RIGHT = 0.1
"""Share of input and output by which an answer may be off."""
GIB = 1 << 30


class Cases:
    """The calls that might be such, as arrays."""

    def __init__(self, calls: Sequence[MeasuredCall]) -> None:
        import numpy as np

        found = [(each, weight_bytes(each.call.convolution, each.call.rows)) for each in _gradients(calls)]
        found = [(each, whole) for each, whole in found if whole]
        self.calls = [each for each, _ in found]
        self.both = np.array([each.call.data + each.call.output for each in self.calls], float)
        self.whole = np.array([whole for _, whole in found], float)
        self.taken = np.array([each.bytes for each in self.calls], float)
        self.values = np.array(
            [
                with_transforms(features(each.call), whole, each.call.data + each.call.output)
                for each, whole in found
            ]
        )
        self.such = abs(self.taken - self.whole) <= SCRAP

    def trees(self, chosen: Any) -> List[Any]:
        """Fitted on a part of the calls."""
        from sklearn.tree import DecisionTreeClassifier

        return [
            DecisionTreeClassifier(
                min_samples_leaf=LEAF, max_depth=DEPTH, max_features=SHARE, random_state=seed
            ).fit(self.values[chosen], self.such[chosen])
            for seed in range(TREES)
        ]


def _gradients(calls: Sequence[MeasuredCall]) -> List[MeasuredCall]:
    return [each for each in calls if each.call.convolution.call == "weight"]


def as_file(trees: Sequence[Any]) -> bytes:
    """The file that estimates read."""
    columns: List[Column] = []
    for tree in trees:
        counts = tree.tree_.value[:, 0, :]
        shares = counts[:, 1] / counts.sum(axis=1)
        made: Columns = columns_of(tree.tree_, lambda node, shares=shares: (0, float(shares[node]), 0))  # type: ignore[misc]
        columns += [(code, array(code, column)) for code, column in zip(COLUMNS, made)]
    return to_bytes({"format": FORMAT, "features": [*FEATURES, *BESIDE]}, columns)


def check(cases: Cases) -> List[str]:
    """On shapes, and on pairs of channels, that were left out of the fit."""
    lines = []
    for title, kind in (("shapes", _shape), ("pairs of channels", _channels)):
        folds = [crc32(kind(each).encode()) % FOLDS for each in cases.calls]
        lines += [f"{title} left out:", *_compared(cases, folds)]
    return lines


def _shape(case: MeasuredCall) -> str:
    return case.shape


def _channels(case: MeasuredCall) -> str:
    c = case.call.convolution
    return f"{min(c.channels, c.outputs)} {max(c.channels, c.outputs)}"


def _compared(cases: Cases, folds: Sequence[int]) -> List[str]:
    import numpy as np

    of_fold = np.array(folds)
    usual, said = np.zeros(len(folds)), np.zeros(len(folds), bool)
    for fold in range(FOLDS):
        seen, left = np.flatnonzero(of_fold != fold), np.flatnonzero(of_fold == fold)
        trees = cases.trees(seen)
        likely = sum(tree.predict_proba(cases.values[left])[:, 1] for tree in trees) / TREES
        said[left] = likely > FROM
        usual[left] = _usual([cases.calls[at] for at in seen], [cases.calls[at] for at in left])
    return _report(cases, said, usual)


def check_packaged(cases: Cases) -> List[str]:
    """The fits as they are, on calls that were drawn and measured to check them."""
    import numpy as np

    asked = [(each.call.convolution, each.call.rows) for each in cases.calls]
    usual = np.array([usual_bytes(*call)[2] for call in asked], float)
    said = np.array(
        [
            picked(features(each.call), int(whole), int(both))
            for each, whole, both in zip(cases.calls, cases.whole, cases.both)
        ]
    )
    return ["drawn to check:", *_report(cases, said, usual)]


def _report(cases: Cases, said: Any, usual: Any) -> List[str]:
    import numpy as np

    such, whole, taken = cases.such, cases.whole, cases.taken
    found, wrong, missed = said & such, said & ~such, ~said & such
    lines = [
        f"  {such.sum()} of {len(such):,} are by transforms (balanced accuracy "
        f"{(found.sum() / such.sum() + 1 - wrong.sum() / (~such).sum()) / 2:.2f}): "
        f"found {found.sum()} ({whole[found].sum() / GIB:.0f} GiB), "
        f"missed {missed.sum()} ({taken[missed].sum() / GIB:.0f} GiB), "
        f"wrongly said {wrong.sum()} ({(whole - taken)[wrong].sum() / GIB:.0f} GiB too much)"
    ]
    return lines + [
        f"  {name:16} {_figures(cases, answers)}"
        for name, answers in (("trees alone", usual), ("with transforms", np.where(said, whole, usual)))
    ]


def _usual(seen: Sequence[MeasuredCall], left: Sequence[MeasuredCall]) -> List[float]:
    """What the trees of `fit.workspaces` say, fitted on the same calls."""
    import numpy as np

    grower = Grower(seen)
    everything = np.arange(len(seen))
    grown: Dict[str, Any] = {
        "trees": [grower.tree(everything, seed) for seed in range(USUAL_TREES)],
        "beyond": grower.beyond(everything),
    }
    forest = as_read({CALLS[2]: grown})[CALLS[2]]
    return [forest.answer(features(each.call), base_bytes(each.call)) for each in left]


def _figures(cases: Cases, answers: Any) -> str:
    off = (answers - cases.taken) / cases.both
    large = (cases.taken >= LARGE_BYTES) & (cases.taken >= LARGE_TIMES * cases.both)
    close = abs(off) <= RIGHT
    return (
        f"within 10 %: {close.mean():.1%}, of {large.sum()} large {close[large].mean():.1%}; "
        f"sum of answers / sum of needs {answers.sum() / cases.taken.sum():.2f}, "
        f"of the large {answers[large].sum() / cases.taken[large].sum():.2f}; "
        f"off by over {LARGE_TIMES} times input and output: too low {(off < -LARGE_TIMES).sum()}, "
        f"too high {(off > LARGE_TIMES).sum()}"
    )


def main(argv: Optional[List[str]] = None) -> int:
    """Fit, or check."""
    options = _parser().parse_args(argv)
    return exit_code(lambda: _run(options.check))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab.fit.fourier", description=__doc__)
    parser.add_argument("--check", action="store_true", help="print errors on shapes left out; write nothing")
    return parser


def _run(only_check: bool) -> int:
    require("numpy", "sklearn")
    import numpy as np

    cases = Cases([*load_calls(OPERATORS), *load_calls(NARROW)])
    if only_check:
        print("\n".join([*check(cases), *check_packaged(Cases(load_calls(NARROW_CHECK)))]))
        return 0
    path = MODELS / FILE
    path.write_bytes(as_file(cases.trees(np.arange(len(cases.calls)))))
    print(f"{len(cases.calls):,} calls, {cases.such.sum()} by transforms: {shown(path)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
