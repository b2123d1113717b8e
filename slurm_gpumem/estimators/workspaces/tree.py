"""One decision tree of the files of workspaces: three columns of numbers, node by node."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Sequence

COLUMNS = ("b", "f", "H")
"""Type codes of a tree's columns in a file (columns.py)."""
BEYOND = 65535
"""Used instead of a leaf's bytes beyond its sum, which are fewer: a separate tree predicts them."""


class Tree(NamedTuple):
    """One decision tree; a node without a feature is a leaf."""

    features: Sequence[int]
    """Index of the feature that a node tests; -1 - base for a leaf."""
    thresholds: Sequence[float]
    """Values up to this go left; for a leaf the multiple of its base."""
    rights: Sequence[int]
    """The right child of a node (the left one is the next node); for a leaf the bytes beyond, or BEYOND."""

    def bytes(self, values: Sequence[float], bases: Sequence[float], beyond: Tree) -> float:
        """The leaf's answer for these values; `beyond` predicts partial sums over the batch."""
        node = self.leaf(values)
        more: float = self.rights[node]
        if more == BEYOND:
            more = beyond.thresholds[beyond.leaf(values)]
        return self.thresholds[node] * bases[-1 - self.features[node]] + more

    def leaf(self, values: Sequence[float]) -> int:
        """The leaf that these values lead to."""
        features, thresholds, rights = self.features, self.thresholds, self.rights
        node, feature = 0, features[0]
        while feature >= 0:
            node = node + 1 if values[feature] <= thresholds[node] else rights[node]
            feature = features[node]
        return node


def trees_of(columns: Sequence[Sequence[Any]]) -> List[Tree]:
    """The trees of a file's columns, which come one after the other."""
    return [Tree(*columns[at : at + len(COLUMNS)]) for at in range(0, len(columns), len(COLUMNS))]
