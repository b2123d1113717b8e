"""Blocks whose inner layers the summary does not show: put usual layers in their place.

A torchinfo table of depth 3 names a block, its output and its parameters. From the class and the
dimensions follows what it is made of (attention, a feed-forward pair, a transformer layer, convolutions);
its width follows from its parameters. torchinfo's totals also count the outputs of hidden layers: what
the visible ones do not explain is shared out among the hidden blocks.
"""

from __future__ import annotations

import re
from typing import List, Optional, Sequence, Tuple

from slurm_gpumem.memory.structural.kinds import family_of, is_attention
from slurm_gpumem.memory.structural.tree import Node
from slurm_gpumem.model.types import Layer, ModelSummary, Shape

_FEED_FORWARD = re.compile(r"M[Ll][Pp]|FFN|[Ff]eed[Ff]orward|Intermediate|GluMlp|SwiGLU")
_SEVERAL = re.compile(
    r"^Sequential$|^ModuleList$|Stage|Encoder$|Decoder$|Layers$|Blocks$|^BasicLayer$|Model$|Transformer$"
)
_INVERTED = re.compile(r"MBConv|InvertedResidual|DepthwiseSeparable|UniversalInverted|Ghost|LinearBottleneck")
_MODERN = re.compile(
    r"Conv[Nn]e[Xx]t|^CNBlock|Focal|MetaNeXt|MetaFormer|PoolFormer|GatedConv|StarBlock|Mamba"
)
_BOTTLENECK = re.compile(r"Bottle|ResNeXt|Res2")
_MARGIN = 0.02

_Rows = List[Tuple[str, float, float]]
"""A convolutional block's layers: kind, width in multiples of its output's channels, share of its parameters."""


def _hidden_elements(summary: ModelSummary, batch: int) -> Optional[float]:
    """Outputs that the totals count and no visible row explains, in elements; None where no total says."""
    if summary.output_bytes is None:
        return None
    visible = sum(
        summary.elements(row.outputs[0], batch)
        for row in summary.layers
        if row.leaf and not row.hidden and row.outputs and (row.params or row.repeated)
    )
    return summary.output_bytes / 4 - visible


def expand_hidden(summary: ModelSummary, tree: List[Node]) -> bool:
    """Give every hidden block children; whether there was one."""
    batch = summary.batch or 1
    rest = _hidden_elements(summary, batch)
    some = bool(summary.hidden)
    more = rest is not None and summary.output_bytes is not None and rest > _MARGIN * summary.output_bytes / 4
    if not some and not more:
        return False
    found: List[Tuple[Node, Shape]] = []
    _collect(tree, None, found, deepest=max(row.depth for row in summary.layers) if more else -1)
    if not found:
        return False
    if rest is not None:
        rest += sum(
            summary.elements(node.row.outputs[0], batch)
            for node, _ in found
            if not node.row.hidden and node.row.outputs
        )
    fixed = inner = 0.0
    for node, shape in found:
        node.children = _guess(node.row, shape, 1.0)
        outputs = _outputs(summary, node.children, batch)
        if _is_convolutional(node.row, shape):
            widths = [width for kind, width, _ in _pattern(node.row, shape) if kind in ("Conv2d", "Linear")]
            share = sum(widths[:-1]) / sum(widths)
            inner += outputs * share
            outputs *= 1 - share
        fixed += outputs
    if rest is not None and rest > 0 and inner:
        scale = min(20.0, max(0.05, (rest - fixed) / inner))
        for node, shape in found:
            if _is_convolutional(node.row, shape):
                node.children = _guess(node.row, shape, scale)
    for node, _ in found:
        node.guessed = True
    return True


def _collect(
    nodes: Sequence[Node], above: Optional[Shape], found: List[Tuple[Node, Shape]], *, deepest: int
) -> None:
    last = above
    for node in nodes:
        row = node.row
        shape = row.outputs[0] if row.outputs else None
        # At the deepest level a class that we do not know, with parameters, is a block like those marked so.
        unknown = row.depth == deepest and row.leaf and row.params > 0 and not family_of(row.kind)
        if row.hidden or unknown:
            # A list has no output of its own: what its parent makes is what its last member makes.
            chosen = shape or above or last
            if chosen is not None and len(chosen) > 1:
                found.append((node, chosen))
        elif node.children:
            _collect(node.children, shape or above, found, deepest=deepest)
        last = shape or last


def _is_convolutional(row: Layer, shape: Shape) -> bool:
    return len(shape) >= 4 and not is_attention(row.kind) and not _FEED_FORWARD.search(row.kind)


def _guess(row: Layer, shape: Shape, scale: float) -> List[Node]:
    if is_attention(row.kind):
        return _attention(row.params, shape)
    if _FEED_FORWARD.search(row.kind):
        return _feed_forward(row.params, shape)
    if len(shape) >= 4:
        return _convolutions(row, shape, scale)
    if len(shape) == 3:
        return _transformer(row, shape)
    return _leaves(("Linear", shape, row.params), ("ReLU", shape, 0))


def _outputs(summary: ModelSummary, nodes: Sequence[Node], batch: int) -> float:
    total = 0.0
    for node in nodes:
        if node.children:
            total += _outputs(summary, node.children, batch)
        elif node.row.params and node.row.outputs:
            total += summary.elements(node.row.outputs[0], batch)
    return total


def _leaves(*rows: Tuple[str, Shape, int]) -> List[Node]:
    return [Node(Layer(kind=kind, outputs=(shape,), params=params)) for kind, shape, params in rows]


def _with_inputs(nodes: List[Node], entry: Shape) -> List[Node]:
    result = []
    for node in nodes:
        row = node.row
        result.append(Node(Layer(kind=row.kind, outputs=row.outputs, inputs=(entry,), params=row.params)))
        entry = row.outputs[0]
    return result


def _widened(shape: Shape, width: int) -> Shape:
    return (*shape[:-1], width) if len(shape) == 3 else (shape[0], width, *shape[2:])


def _attention(params: int, shape: Shape) -> List[Node]:
    """A fused projection to queries, keys and values, and one back."""
    axis = -1 if len(shape) == 3 else 1
    width = max(1, shape[axis])
    fused = _widened(shape, 3 * width)
    nodes = _leaves(("Linear", fused, params * 3 // 4), ("Linear", shape, params - params * 3 // 4))
    nodes = _with_inputs(nodes, shape)
    nodes[1] = Node(Layer(kind="Linear", outputs=(shape,), inputs=(shape,), params=nodes[1].row.params))
    return nodes


def _feed_forward(params: int, shape: Shape) -> List[Node]:
    """Up, activation, down: the inner width follows from the parameters."""
    width = max(1, shape[-1] if len(shape) == 3 else shape[1])
    inner = _widened(shape, max(1, params // (2 * width)))
    return _with_inputs(
        _leaves(("Linear", inner, params // 2), ("GELU", inner, 0), ("Linear", shape, params - params // 2)),
        shape,
    )


def _transformer(row: Layer, shape: Shape) -> List[Node]:
    """One or several transformer layers: normalization, attention, normalization, feed-forward."""
    width = max(1, shape[-1])
    count = 1
    if _SEVERAL.search(row.kind):
        count = max(1, round(row.params / (12 * width * width)))
    each = row.params // count
    attention = min(4 * width * width, each)
    rest = each - attention
    nodes: List[Node] = []
    for _ in range(count):
        block = _with_inputs(_leaves(("LayerNorm", shape, 0)), shape)
        block.append(_module("HiddenAttention", shape, _attention(attention, shape)))
        block += _with_inputs(_leaves(("LayerNorm", shape, 0)), shape)
        if rest:
            block.append(_module("HiddenMlp", shape, _feed_forward(rest, shape)))
        nodes.append(_module("HiddenBlock", shape, block))
    return nodes


def _module(kind: str, shape: Shape, children: List[Node]) -> Node:
    return Node(Layer(kind=kind, outputs=(shape,), inputs=(shape,), leaf=False), children)


def _pattern(row: Layer, shape: Shape) -> _Rows:
    """The layers of one convolutional block of this class."""
    channels = max(1, shape[1])
    blocks = _block_count(row, channels)
    params = row.params / blocks
    if _INVERTED.search(row.kind):
        wide = min(6.0, max(1.0, params / (2.5 * channels * channels)))
        pattern: _Rows = [("Conv2d", wide, 0.45), ("BatchNorm2d", wide, 0), ("SiLU", wide, 0)]
        pattern += [("Conv2d", wide, 0.1), ("BatchNorm2d", wide, 0), ("SiLU", wide, 0)]
        pattern += [("Conv2d", 1, 0.45), ("BatchNorm2d", 1, 0)]
    elif _MODERN.search(row.kind):
        wide = max(0.5, params / (2.0 * channels * channels))
        pattern = [("Conv2d", 1, 0.02), ("LayerNorm2d", 1, 0), ("Linear", wide, 0.49)]
        pattern += [("GELU", wide, 0), ("Linear", 1, 0.49)]
    elif _BOTTLENECK.search(row.kind):
        wide = min(1.0, max(0.1, ((4 * channels**2 + 36 * params) ** 0.5 - 2 * channels) / 18 / channels))
        pattern = [("Conv2d", wide, 0.25), ("BatchNorm2d", wide, 0), ("ReLU", wide, 0)]
        pattern += [("Conv2d", wide, 0.5), ("BatchNorm2d", wide, 0), ("ReLU", wide, 0)]
        pattern += [("Conv2d", 1, 0.25), ("BatchNorm2d", 1, 0), ("ReLU", 1, 0)]
    else:
        pattern = [("Conv2d", 1, 0.5), ("BatchNorm2d", 1, 0), ("ReLU", 1, 0)] * 2
    return pattern


def _block_count(row: Layer, channels: int) -> int:
    if not _SEVERAL.search(row.kind):
        return 1
    return max(1, min(64, round(row.params / (8.0 * channels * channels))))


def _convolutions(row: Layer, shape: Shape, scale: float) -> List[Node]:
    """One or several convolutional blocks whose inner layers are `scale` times as wide as usual."""
    channels = max(1, shape[1])
    blocks = _block_count(row, channels)
    rows: List[Tuple[str, Shape, int]] = []
    for _ in range(blocks):
        pattern = _pattern(row, shape)
        last = max(index for index, (kind, _, _) in enumerate(pattern) if kind in ("Conv2d", "Linear"))
        for index, (kind, width, share) in enumerate(pattern):
            made = shape if index >= last else _widened(shape, max(1, round(channels * width * scale)))
            params = int(row.params / blocks * share) or (2 * made[1] if "Norm" in kind else 0)
            rows.append((kind, made, params))
    return _leaves(*rows)
