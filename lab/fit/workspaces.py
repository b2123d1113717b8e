"""Fit which workspace cuDNN takes for a convolution: `python -m lab.fit.workspaces`.

Reads the single operators of lab/data/ground-truth/operators.jsonl.xz and writes models/fitted/cudnn-
workspaces.bin. A tree's splits come from which sum (BASES) the workspace is or begins with; each leaf then
takes the sum, the factor and the bytes beyond that are right for most of its cases. How much is taken beyond
a sum for parts of sums over the batch, one more tree for each kind of call tells.
"""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

from lab.command import exit_code, require
from lab.places import FITTED, OPERATORS
from lab.probe.measured_calls import MeasuredCall, load_calls
from slurm_gpumem.estimators.workspaces.convolutions import (
    BASES,
    BEYOND,
    COLUMNS,
    FEATURES,
    FILE,
    FORMAT,
    base_bytes,
    features,
    little_endian,
)
from slurm_gpumem.summaries.trace_types import CALLS

TREES, LEAF, DEPTH, SHARE = 5, 3, 16, 0.5
"""Of a forest; fewest cases of a leaf; deepest; features that a split looks at."""
NOTHING = 64 << 10
"""Bytes below which a workspace does not matter."""
SCRAP = 2048
"""Bytes beyond a sum that are only its alignment."""
REST = 0.35
"""Share of a workspace that may lie beyond a sum which it begins with: parts of sums over the batch."""
Columns = List[List[float]]
Column = Tuple[str, Sequence[float]]
"""Array's code, and the numbers."""
_BEGINNINGS = ("all", "both", "data+weight", "output+weight", "data", "output")
_BEGINS, _BEGINS_END, _POWERS = 100, 200, 300


# -- Fit -----------------------------------------------------------------------------------------


class Grower:
    """Cases of one kind of call as arrays, and trees on any part of them."""

    def __init__(self, cases: Sequence[MeasuredCall]) -> None:
        import numpy as np

        self.cases = cases
        self.values = np.array([features(case.call) for case in cases])
        self.bases = np.array([base_bytes(case.call) for case in cases])
        self.bytes = np.array([case.bytes for case in cases], float)
        self.scale = np.array([case.call.data + case.call.output for case in cases], float) + NOTHING
        self.labels = np.array([self._label(index) for index in range(len(cases))])

    def _label(self, index: int) -> int:
        """The sum that it is or begins with; else how many times both tensors it is, by powers."""
        import numpy as np

        taken = self.bytes[index]
        if taken < NOTHING:
            return 0
        beyond = taken - self.bases[index]
        for base in range(1, len(BASES)):
            if -1 <= beyond[base] <= SCRAP:
                return base
        for base in (BASES.index(name) for name in _BEGINNINGS):
            if 0 < beyond[base] < REST * taken:
                return _BEGINS + base
        return _POWERS + int(np.round(np.log2(taken / self.scale[index])))

    def tree(self, chosen: Any, seed: int) -> Columns:
        """One tree as `convolutions.Tree` takes it."""
        from sklearn.tree import DecisionTreeClassifier

        fitted = DecisionTreeClassifier(
            min_samples_leaf=LEAF, max_depth=DEPTH, max_features=SHARE, random_state=seed
        ).fit(self.values[chosen], self.labels[chosen])
        leaves = fitted.apply(self.values[chosen])
        return columns_of(fitted.tree_, lambda node: self._leaf(chosen[leaves == node]))

    def beyond(self, chosen: Any) -> Columns:
        """The tree that knows how much is taken for parts of sums, beyond a sum that is known."""
        import numpy as np
        from sklearn.tree import DecisionTreeRegressor

        chosen = chosen[(self.labels[chosen] >= _BEGINS) & (self.labels[chosen] < _BEGINS_END)]
        bytes_ = np.array([self.bytes[i] - self.bases[i, self.labels[i] - _BEGINS] for i in chosen])
        fitted = DecisionTreeRegressor(min_samples_leaf=LEAF, max_depth=DEPTH, random_state=0).fit(
            self.values[chosen], np.log2(np.maximum(bytes_, 1))
        )
        leaves = fitted.apply(self.values[chosen])
        return columns_of(fitted.tree_, lambda node: (0, int(np.median(bytes_[leaves == node])), 0))

    def _leaf(self, chosen: Any) -> Tuple[int, float, int]:
        """The sum, the factor and the bytes beyond with the least error for these cases."""
        import numpy as np

        labels, counts = np.unique(self.labels[chosen], return_counts=True)
        most = int(labels[counts.argmax()])
        if _BEGINS <= most < _BEGINS_END:
            return most - _BEGINS, 1.0, BEYOND
        taken, scale = self.bytes[chosen], self.scale[chosen]
        best = (float(np.mean(taken / scale)), 0, 0.0, 0)
        for base in range(1, len(BASES)):
            sums = self.bases[chosen, base]
            rest = min(max(0, int(np.median(taken - sums))), BEYOND - 1)
            for times, more in ((1.0, 0), (1.0, rest), (float(np.median(taken / np.maximum(sums, 1))), 0)):
                error = float(np.mean(np.abs(times * sums + more - taken) / scale))
                best = min(best, (error + 1e-4, base, times, more))
        return best[1], best[2], best[3]


def columns_of(inner: Any, leaf: Callable[[int], Tuple[int, float, int]]) -> Columns:
    """A fitted tree as three columns, node by node, left ones first."""
    columns: Columns = [[], [], []]

    def add(node: int) -> None:
        here = len(columns[0])
        if inner.children_left[node] < 0:
            base, times, beyond = leaf(node)
            for column, value in zip(columns, (-1 - base, times, beyond)):
                column.append(value)
            return
        for column, value in zip(columns, (int(inner.feature[node]), float(inner.threshold[node]), 0)):
            column.append(value)
        add(int(inner.children_left[node]))
        columns[2][here] = len(columns[0])
        add(int(inner.children_right[node]))

    add(0)
    # Fewer digits than a threshold's distance to the values beside it.
    columns[1] = [float(f"{value:.7g}") for value in columns[1]]
    return columns


def grow(cases: Sequence[MeasuredCall]) -> Dict[str, Dict[str, Any]]:
    """A forest for each kind of call."""
    import numpy as np

    forests = {}
    for name in CALLS:
        grower = Grower([case for case in cases if case.call.convolution.call == name])
        everything = np.arange(len(grower.cases))
        trees = [grower.tree(everything, seed) for seed in range(TREES)]
        forests[name] = {"trees": trees, "beyond": grower.beyond(everything)}
    return forests


def as_columns(forests: Dict[str, Dict[str, Any]], cases: int) -> Tuple[Dict[str, Any], List[Column]]:
    """The file's header and columns."""
    header = {
        "format": FORMAT,
        "features": list(FEATURES),
        "bases": list(BASES),
        "card": {
            "data": f"{cases} calls on an H200",
            "command": "python -m lab.fit.workspaces",
        },
        "calls": {name: len(forest["trees"]) + 1 for name, forest in forests.items()},
    }
    columns: List[Column] = [
        (code, array(code, column))
        for forest in forests.values()
        for tree in (*forest["trees"], forest["beyond"])
        for code, column in zip(COLUMNS, tree)
    ]
    return header, columns


def to_bytes(header: Mapping[str, Any], columns: Sequence[Column]) -> bytes:
    """A file of columns, as estimates read it (estimators/workspaces)."""
    packed = b"".join(little_endian(array(code, numbers)).tobytes() for code, numbers in columns)
    listed = [[code, len(numbers)] for code, numbers in columns]
    line = {**header, "columns": listed, "crc32": zlib.crc32(packed)}
    return json.dumps(line, separators=(",", ":")).encode() + b"\n" + packed


def main() -> int:
    """Fit and write."""
    require("numpy", "sklearn")
    cases = load_calls(OPERATORS)
    forests = grow(cases)
    path = FITTED / FILE
    path.write_bytes(to_bytes(*as_columns(forests, len(cases))))
    leaves = sum(
        feature < 0 for forest in forests.values() for tree in forest["trees"] for feature in tree[0]
    )
    print(f"{len(cases):,} calls, {leaves:,} leaves, {path.stat().st_size:,} bytes: {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
