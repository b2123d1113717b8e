"""Blocks whose inner layers the summary does not show: put usual layers in their place.

A torchinfo table of depth 3 names a block, its output and its parameters. From the class and the
dimensions follows what it is made of (attention, a feed-forward pair, a transformer layer, convolutions);
its width follows from its parameters. torchinfo's totals also count the outputs of hidden layers: what
the visible ones do not explain is shared out among the hidden blocks.
"""

from __future__ import annotations

import re
from typing import Dict, List, Optional, Sequence, Tuple

from slurm_gpumem.memory.structural.kinds import family_of, is_attention
from slurm_gpumem.memory.structural.tree import Node
from slurm_gpumem.model.types import Layer, ModelSummary, Shape

_FEED_FORWARD = re.compile(r"M[Ll][Pp]|FFN|[Ff]eed[Ff]orward|Intermediate|GluMlp|SwiGLU")
_SEVERAL = re.compile(
    r"^Sequential$|^ModuleList$|Stage|Encoder$|Decoder$|Layers$|Blocks$|^BasicLayer$|Model$|Transformer$"
)
_SMOOTH = re.compile(
    r"MBConv|InvertedResidual|EdgeResidual|DepthwiseSeparable|UniversalInverted|Conv[Nn]e[Xx]t|Ghost|Fused|^CN"
)


class Budget:
    """Outputs inside hidden blocks, in elements at the summary's batch; None where no total says."""

    def __init__(self, summary: ModelSummary) -> None:
        self.elements: Optional[float] = None
        if summary.output_bytes is not None and summary.hidden:
            batch = summary.batch or 1
            visible = sum(
                summary.elements(row.outputs[0], batch)
                for row in summary.layers
                if row.leaf and not row.hidden and row.outputs and (row.params or row.repeated)
            )
            rest = summary.output_bytes / 4 - visible
            self.elements = rest if rest > 0 else None
        self.scale = 1.0
        """What the guesses for all hidden blocks must be multiplied with to meet the total."""


def expand_hidden(summary: ModelSummary, tree: List[Node]) -> bool:
    """Give every hidden block children; whether there was one."""
    found: List[Tuple[Node, Shape]] = []
    _collect(tree, None, found)
    if not found:
        return False
    budget = Budget(summary)
    batch = summary.batch or 1
    guesses = [_guess(node.row, shape) for node, shape in found]
    weights = [_outputs(summary, guess, batch) for guess in guesses]
    flexible = sum(w for w, (node, shape) in zip(weights, found) if _is_convolutional(node.row, shape))
    fixed = sum(weights) - flexible
    scale = 1.0
    if budget.elements is not None and flexible:
        scale = max(0.05, (budget.elements - fixed) / flexible)
    for (node, shape), guess in zip(found, guesses):
        if _is_convolutional(node.row, shape):
            guess = _convolutions(node.row, shape, scale)
        node.children = guess
    return True


def _collect(nodes: Sequence[Node], above: Optional[Shape], found: List[Tuple[Node, Shape]]) -> None:
    last = above
    for node in nodes:
        row = node.row
        shape = row.outputs[0] if row.outputs else None
        if row.hidden:
            # A list has no output of its own: what its parent makes is what its last member makes.
            chosen = shape or above or last
            if chosen is not None and len(chosen) > 1:
                found.append((node, chosen))
        elif node.children:
            _collect(node.children, shape or above, found)
        last = shape or last


def _is_convolutional(row: Layer, shape: Shape) -> bool:
    return len(shape) >= 4 and not is_attention(row.kind) and not _FEED_FORWARD.search(row.kind)


def _guess(row: Layer, shape: Shape) -> List[Node]:
    if is_attention(row.kind):
        return _attention(row.params, shape)
    if _FEED_FORWARD.search(row.kind):
        return _feed_forward(row.params, shape)
    if len(shape) >= 4:
        return _convolutions(row, shape, 1.0)
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


def _convolutions(row: Layer, shape: Shape, scale: float) -> List[Node]:
    """Convolutions with batch norms and activations, of which `scale` times the usual number of outputs."""
    channels = max(1, shape[1])
    blocks = 1.0
    if _SEVERAL.search(row.kind):
        blocks = max(1.0, row.params / (6.0 * channels * channels))
    activation = "SiLU" if _SMOOTH.search(row.kind) else "ReLU"
    pairs = max(0.5, 2.0 * blocks * scale)
    count = max(1, round(pairs))
    inner = _widened(shape, max(1, round(channels * pairs / count)))
    each = row.params // count
    rows: List[Tuple[str, Shape, int]] = []
    for index in range(count):
        made = shape if index == count - 1 else inner
        rows += [("Conv2d", made, each), ("BatchNorm2d", made, 1), (activation, made, 0)]
    return _leaves(*rows)


def kinds_of(tree: Sequence[Node]) -> Dict[str, int]:
    """How often each hidden class occurs, for the assumptions."""
    found: Dict[str, int] = {}
    for node in tree:
        if node.row.hidden:
            found[node.row.kind] = found.get(node.row.kind, 0) + 1
        elif node.children and not family_of(node.row.kind):
            for kind, count in kinds_of(node.children).items():
                found[kind] = found.get(kind, 0) + count
    return found
