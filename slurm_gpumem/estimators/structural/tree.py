"""The rows of a summary as a tree of modules, each with its children in the order of execution."""

from __future__ import annotations

from typing import List, Optional, Sequence, Set

from slurm_gpumem.estimators.structural.layers.class_names import family_of, named
from slurm_gpumem.summaries.types import UNKNOWN_KIND, Layer, ModelSummary, Shape

_PARAMETRIZED = "Parametrized"
_COMPUTE = ("conv", "softmax", "mha", "rnn", "embedding")


class Node:
    """A module: a row, or a block that a row stands for."""

    __slots__ = ("activated", "children", "contains", "guessed", "row", "shortcut")

    def __init__(self, row: Layer, children: Optional[List[Node]] = None) -> None:
        self.row = row
        self.children: List[Node] = children if children is not None else []
        self.guessed = False
        """Its children are not in the summary."""
        self.activated: Optional[Layer] = None
        """The activation after it that is a function and has no row."""
        self.shortcut = False
        """It is the shortcut around a residual block's other layers."""
        self.contains: Set[str] = set()
        """Kinds of containers in it, including itself; only kept if nesting has to be inferred."""


def build_tree(summary: ModelSummary) -> List[Node]:
    """The top-level modules of a summary."""
    if not summary.shows.nesting:
        rows = summary.layers if summary.shows.leading_sizes else _with_windows(summary.layers)
        return _from_closing_rows(rows)
    roots = _from_depths(summary.layers)
    if any(row.kind.startswith(_PARAMETRIZED) for row in summary.layers):
        for node in roots:
            _fold_parametrized(node)
    return roots


def _fold_parametrized(node: Node) -> None:
    """A layer whose weight is computed from other parameters (weight norm) is that layer with all of them."""
    for child in node.children:
        _fold_parametrized(child)
    row = node.row
    if row.kind.startswith(_PARAMETRIZED) and node.children:
        kind = row.kind[len(_PARAMETRIZED) :]
        node.row = row._replace(kind=kind, params=row.params + _params_in(node.children), leaf=True)
        node.children = []


def _params_in(nodes: Sequence[Node]) -> int:
    return sum(node.row.params + _params_in(node.children) for node in nodes)


def _with_windows(rows: Sequence[Layer]) -> Sequence[Layer]:
    """Restore the windows where "-1" replaces the first size: [batch · windows, tokens, width] is printed
    as [-1, tokens, width], so that the tokens of all windows but one would be lost."""
    if not any("Window" in row.kind for row in rows):
        return rows
    result: List[Layer] = []
    image: Shape = ()
    for row in rows:
        shape = row.outputs[0] if row.outputs else ()
        if len(shape) == 4 and shape[1] == shape[2] != shape[3]:
            image = shape
        elif len(shape) == 3 and image and shape[1] > 1 and shape[2] % image[3] == 0:
            pixels = image[1] * image[2]
            if pixels > shape[1] and pixels % shape[1] == 0:
                row = row._replace(outputs=((shape[0], pixels, shape[2]),), inputs=())
        elif len(shape) == 4 and image and 1 < shape[2] == shape[3] < image[1] * image[2]:
            # The attention matrix of each window.
            pixels = image[1] * image[2]
            if pixels % shape[2] == 0:
                row = row._replace(outputs=((*shape[:2], pixels, shape[3]),), inputs=())
        if row.kind.startswith("ShiftedWindowAttention") and not row.params and shape:
            # It uses its projections' weights without calling them: they have no rows.
            row = row._replace(params=4 * shape[-1] * (shape[-1] + 1), leaf=True, inputs=())
        result.append(row)
    return result


def _from_depths(rows: Sequence[Layer]) -> List[Node]:
    """Parents come before their children, and the depth shows which they are."""
    roots: List[Node] = []
    path: List[Node] = []
    for row in rows:
        node = Node(row)
        while path and path[-1].row.depth >= row.depth:
            path.pop()
        (path[-1].children if path else roots).append(node)
        path.append(node)
    return roots


def _from_closing_rows(rows: Sequence[Layer]) -> List[Node]:
    """A container's row comes after its children's and does not say how many there are.

    It takes everything since the last container that is of its kind or has one of its kind inside:
    that one is an earlier sibling or a sibling's parent.
    """
    open_nodes: List[Node] = []
    for row in rows:
        if not row.params and row.outputs and named("scaled-branch", row.kind):
            # Parameters that belong to no layer are not counted.
            row = row._replace(params=row.outputs[0][1])
        node = Node(row)
        family = family_of(row.kind)
        start = len(open_nodes)
        if family in ("batch_norm_act", "group_norm_act"):
            # Normalizes first, then calls its activation, whose row comes before it.
            while start and len(open_nodes) - start < 2 and _belongs(open_nodes[start - 1], row):
                start -= 1
        elif not family and (not row.params or named("scaled-branch", row.kind)) and row.kind != UNKNOWN_KIND:
            while start and row.kind not in open_nodes[start - 1].contains:
                start -= 1
        node.children = open_nodes[start:]
        del open_nodes[start:]
        if node.children and not row.params and _lacks_projection(node):
            width = row.outputs[0][-1]
            node.row = row._replace(params=3 * width * width)
        if node.children:
            node.contains = {row.kind}.union(*(child.contains for child in node.children))
        open_nodes.append(node)
    return open_nodes


def _lacks_projection(node: Node) -> bool:
    """Whether this is attention over tokens of which only the last layer has a row: the weights of the packed
    projection are used without calling it."""
    row = node.row
    if not row.kind.endswith("Attention") or not row.outputs or len(row.outputs[0]) != 3:
        return False
    linear = [child.row for child in node.children if family_of(child.row.kind) == "linear"]
    others = [child for child in node.children if child.children or family_of(child.row.kind) in _COMPUTE]
    width = row.outputs[0][-1]
    return len(linear) == 1 and not others and linear[0].params - width * width in (0, width)


def _belongs(node: Node, row: Layer) -> bool:
    before = node.row
    return not node.children and not before.params and before.outputs == row.outputs
