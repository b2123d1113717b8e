"""Fit which gradients of weights cuDNN computes by Fourier transforms: `python -m lab.fit.fourier`.

Reads the operators of operators.jsonl.xz and narrow.jsonl.xz in lab/data/ground-truth and writes
models/fitted/cudnn-fourier.bin: trees that say how likely a call is one
(estimators/workspaces/convolutions.py; how much it takes is a rule, not fitted).
No fit reads narrow-check.jsonl.xz, which the tests check it on.
"""

from __future__ import annotations

import sys
from array import array
from typing import Any, List, Sequence

from lab.command import exit_code, require
from lab.fit.workspaces import SCRAP, Column, Columns, columns_of, to_bytes
from lab.places import FITTED, NARROW, OPERATORS, shown
from lab.probe.measured_calls import MeasuredCall, load_calls
from slurm_gpumem.estimators.workspaces.convolutions import (
    COLUMNS,
    FEATURES,
    features,
    weight_bytes,
    with_transforms,
)
from slurm_gpumem.estimators.workspaces.convolutions import FOURIER_FEATURES as BESIDE
from slurm_gpumem.estimators.workspaces.convolutions import FOURIER_FILE as FILE
from slurm_gpumem.estimators.workspaces.convolutions import FOURIER_FORMAT as FORMAT

TREES, LEAF, DEPTH, SHARE = 15, 3, 16, 0.5
"""Of the forest; fewest cases of a leaf; deepest; features that a split looks at."""


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


def main() -> int:
    """Fit and write."""
    require("numpy", "sklearn")
    import numpy as np

    cases = Cases([*load_calls(OPERATORS), *load_calls(NARROW)])
    path = FITTED / FILE
    path.write_bytes(as_file(cases.trees(np.arange(len(cases.calls)))))
    print(f"{len(cases.calls):,} calls, {cases.such.sum()} by transforms: {shown(path)}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
