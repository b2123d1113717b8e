"""Keys of a model: equal for all summaries of it by one way of printing, different for any other model.

A key hashes every row that the summary shows, in order: class, depth, parameters and the size of a sample's
output, or, where a summary has no shapes, class, depth and arguments. One changed layer, width or size
changes it.
"""

from __future__ import annotations

from typing import Iterable, Iterator, List, Tuple

from slurm_gpumem.summaries.leaf_classes import is_leaf_kind
from slurm_gpumem.summaries.types import UNKNOWN_KIND, Layer, ModelSummary

KEY_BYTES = 8
FEWEST_ROWS = 8
"""A summary with fewer rows is no sign of a certain model."""
SHALLOWEST = 2
"""Summaries cut at a smaller depth show too little."""


def key_of(summary: ModelSummary) -> bytes:
    """The key of a summary; empty where it does not show enough."""
    layers = summary.layers
    if len(layers) < FEWEST_ROWS or not summary.complete or any(one.kind == UNKNOWN_KIND for one in layers):
        return b""
    if not summary.shows.nesting:
        return _key("flat", _flat(summary))
    deepest = max(layer.depth for layer in layers)
    if deepest < SHALLOWEST:
        return b""
    if summary.has_shapes:
        return _key("shapes", _shaped(summary, deepest))
    if any(layer.attributes for layer in layers):
        return _key("printed", _printed(layers))
    return _key("tree", _tree(layers, deepest))


def keys_at_depths(summary: ModelSummary) -> List[bytes]:
    """The keys that the same text has when it is cut at each smaller depth, and its own."""
    rows = _shaped if summary.has_shapes else lambda of, deepest: _tree(of.layers, deepest)
    name = "shapes" if summary.has_shapes else "tree"
    deepest = max(layer.depth for layer in summary.layers)
    found = [_key(name, rows(summary, depth)) for depth in range(SHALLOWEST, deepest + 1)]
    return [key for key in found if key]


def _key(name: str, rows: Iterable[Tuple[object, ...]]) -> bytes:
    from slurm_gpumem.digest import blake2b  # here, because most submissions need none

    digest, count = blake2b(name.encode(), digest_size=KEY_BYTES), 0
    for row in rows:
        digest.update("|".join(map(str, row)).encode("utf-8", "backslashreplace") + b"\n")
        count += 1
    return digest.digest() if count >= FEWEST_ROWS else b""


def _shaped(summary: ModelSummary, deepest: int) -> Iterator[Tuple[object, ...]]:
    """Rows down to a depth; what lies below it counts as parameters of the last row above."""
    sums = _params_below(summary.layers)
    for layer, params in zip(summary.layers, sums):
        if layer.depth <= deepest:
            # Of containers tools show different ones of several outputs.
            size = _sample(summary, layer) if is_leaf_kind(layer.kind) else ""
            yield layer.depth, layer.kind, params, int(layer.repeated), size


def _flat(summary: ModelSummary) -> Iterator[Tuple[object, ...]]:
    """Layers that compute, in the order of their calls."""
    for layer in summary.layers:
        if is_leaf_kind(layer.kind):
            yield layer.kind, layer.params, _sample(summary, layer)


def _printed(layers: Tuple[Layer, ...]) -> Iterator[Tuple[object, ...]]:
    for layer in layers:
        yield layer.depth, layer.kind, layer.attributes


def _tree(layers: Tuple[Layer, ...], deepest: int) -> Iterator[Tuple[object, ...]]:
    """Modules and their parameters in the order of definition, as torchinfo shows them without an input."""
    for layer, params in zip(layers, _params_below(layers)):
        if layer.depth <= deepest:
            yield layer.depth, layer.kind, params


def _params_below(layers: Tuple[Layer, ...]) -> List[int]:
    """Each row's own parameters and those of all rows below it."""
    sums = [layer.params for layer in layers]
    parents: List[int] = []
    for at, layer in enumerate(layers):
        while parents and layers[parents[-1]].depth >= layer.depth:
            parents.pop()
        for parent in parents:
            sums[parent] += layer.params
        parents.append(at)
    return sums


def _sample(summary: ModelSummary, layer: Layer) -> str:
    return ",".join(str(summary.elements(shape, 1)) for shape in layer.outputs[:1])
