"""Attention between projections: no row shows it; the projections around it do."""

from __future__ import annotations

from math import prod
from typing import Callable, List, Optional, Sequence

from slurm_gpumem.estimators.allocator.tape import Tensor
from slurm_gpumem.estimators.structural.layers.attention_math import (
    WINDOW_HEAD,
    Style,
    attend,
    compare_by_angle,
    cosine,
    tokens_of,
    written_out,
)
from slurm_gpumem.estimators.structural.layers.class_names import (
    computes_matrix,
    drops_eagerly,
    family_of,
    is_attention,
    named,
    position_scores,
)
from slurm_gpumem.estimators.structural.layers.convolutions import conv_input, sum_bytes
from slurm_gpumem.estimators.structural.layers.layers import rule_for
from slurm_gpumem.estimators.structural.shapes import input_shape
from slurm_gpumem.estimators.structural.tree import Node
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.summaries.types import Layer, Shape

Run = Callable[[Walk, Node], None]

HIDDEN_EAGER, HIDDEN_DROPPING = "HiddenEagerAttention", "HiddenDroppingAttention"
"""Attention inside hidden blocks that materializes its matrix, without and with dropout on it."""

_MOST_HEADS = 64
_LEAST_HEAD = 16
_WINDOW_TOKENS = 49
_PROJECTIONS = ("linear", "conv")
_BETWEEN = (
    "identity",
    "dropout",
    "layer_norm",
    "rms_norm",
    "batch_norm",
    "batch_norm_act",
    "rotary",
    "softmax",
)


def projections(node: Node) -> List[Node]:
    """The children that make queries, keys and values; empty if this container has none itself."""
    leaves = [
        c for c in node.children if not c.children and c.row.called and family_of(c.row.kind) in _PROJECTIONS
    ]
    if not leaves:
        return []
    first = leaves[0].row
    if not first.outputs or (not first.inputs and family_of(first.kind) == "conv"):
        return []
    axis = 1 if family_of(first.kind) == "conv" else -1
    wide = first.outputs[0][axis]
    # If the summary does not give a layer's input, its weights do.
    narrow = first.inputs[0][axis] if first.inputs else first.params // max(1, wide)
    if len(leaves) < 4 and narrow > 0 and wide >= 2 * narrow and wide != 4 * narrow:
        return leaves[:1]
    if len(leaves) >= 2 and leaves[1].row.outputs and leaves[1].row.outputs[0][axis] == 2 * wide:
        return leaves[:2]
    return leaves[:3] if len(leaves) >= 3 else []


def is_packed(node: Node) -> bool:
    """Whether this layer makes queries, keys and values together, three times as wide as its input."""
    row = node.row
    if node.children or not row.called or family_of(row.kind) != "linear" or not row.outputs:
        return False
    taken = input_shape(row)
    return taken is not None and len(taken) > 2 and row.outputs[0][-1] == 3 * taken[-1]


def ends_attention(walk: Walk, node: Node, packed: List[Tensor]) -> bool:
    """Record attention before a projection that takes one third of what the packed ones made.

    Returns whether nothing is left to attend to: another layer between them means that there is no attention.
    """
    row = node.row
    if not node.children and (not row.called or family_of(row.kind) in _BETWEEN):
        return False
    taken = input_shape(row)
    linear = not node.children and family_of(row.kind) == "linear"
    if linear and taken is not None and 3 * taken[-1] == packed[-1].shape[-1]:
        attend(walk, packed, taken, matrix=None, style=Style(grouped=False, written_out=False))
    return True


def uses_weights_only(node: Node) -> bool:
    """Whether this is attention that uses the weights of its projections without calling them."""
    row = node.row
    if not is_attention(row.kind) or not row.called or node.guessed:
        return False
    if not node.children:
        return row.params > 0 and bool(row.outputs) and not row.hidden and row.leaf
    members = [child.row for child in node.children]
    width = _width(row.outputs[0]) if row.outputs else 0
    if width > 0 and row.params >= 4 * width * width:
        # All four projections are its own; the layers called inside make a position bias.
        return True
    return not any(member.called for member in members) and any(member.params for member in members)


def _width(shape: Shape) -> int:
    """The width of a token; also of an image whose channels may come first."""
    return max(shape[1], shape[-1]) if len(shape) == 4 else shape[-1]


def uncalled_projection(node: Node) -> int:
    """Parameters of a fused projection whose weights the module uses without calling it; 0: none.

    torchinfo counts them as the container's own; the projection after the attention has a row.
    """
    row = node.row
    if node.guessed or not row.outputs or not is_attention(row.kind) or projections(node):
        return 0
    width = _width(row.outputs[0])
    called = any(child.row.called and family_of(child.row.kind) == "linear" for child in node.children)
    return row.params if called and row.params >= 3 * width * width else 0


def around_uncalled(walk: Walk, node: Node, params: int, run: Run) -> None:
    """Walk such a module: the product with the fused weights, attention, what follows."""
    x = walk.lowered(walk.take(walk.cur))
    walk.uses_matmul = True
    copies, gradients = walk.weight(walk.param(params, trainable=node.row.trainable), params)
    fused = walk.tape.new((), 3 * x.elements, walk.low)
    macs = fused.elements * x.shape[-1]
    _project(walk, (x, *copies), fused, gradients, 3 * x.shape[-1], macs)
    matrix = _matrix(node)
    bias = [child for child in node.children if child.children and child.row.called]
    if bias and matrix is not None:
        # Layers that make a bias from distances: Swin's second version, which compares by angle.
        for child in bias:
            run(walk, child)
            walk.take(walk.cur)
        walk.tape.label = node.row.kind
        compare_by_angle(walk, fused, node.row.outputs[0], walk.count(matrix))
    else:
        bias, style = [], Style(grouped=False, written_out=False)
        attend(walk, [fused], node.row.outputs[0], matrix=matrix, style=style)
    for child in node.children:
        if child not in bias and not (bias and child.row.outputs[:1] == (matrix,)):
            run(walk, child)


def _project(
    walk: Walk, ins: Sequence[Tensor], out: Tensor, params: Sequence[int], wide: int, macs: int
) -> Tensor:
    """A product with weights that no row shows, and their bias."""
    passing = (0, sum_bytes(out.elements // max(1, wide), max(1, wide)))
    return walk.tape.op(ins, out, saved=ins, passing=passing, params=tuple(params), matmul=True, macs=macs)


def functional(walk: Walk, node: Node, run: Run) -> None:
    """Attention with its own products and softmax, like torchvision's over windows with a position bias."""
    row = node.row
    x = walk.take(walk.cur)
    shape = row.outputs[0] if row.outputs else x.shape
    width = max(1, shape[-1])
    called = [child for child in node.children if child.row.called]
    params = [child.row.params for child in node.children if child.row.params and not child.row.called]
    table = row.params
    if not params:
        params = [3 * width * (width + 1), width * (width + 1)]
        table = max(0, row.params - sum(params))
    walk.uses_matmul = True
    windows = walk.tape.op((x,), walk.tape.new(shape, x.elements, x.width))
    low = walk.lowered(windows)
    copies, gradients = walk.weight(walk.param(params[0], trainable=row.trainable), params[0])
    fused = walk.tape.new((), 3 * x.elements, walk.low)
    macs = fused.elements * width
    _project(walk, (low, *copies), fused, gradients, 3 * width, macs)
    heads = max(1, shape[-1] // WINDOW_HEAD)
    # The bias has one entry for each distance within a window: (2w - 1) in every direction.
    distances = max(1.0, table / heads)
    dimensions = max(1, len(shape) - 2)
    tokens = ((distances ** (1 / dimensions) + 1) / 2) ** dimensions if table else shape[-2]
    # Other parameters than a bias may be in it: no window has more tokens than the sample.
    tokens = min(tokens, max(1.0, x.elements / max(1, walk.count((shape[0], width)))))
    walk.param(table, trainable=row.trainable)
    out = walk.tape.new(shape, x.elements, walk.low)
    matrix = _matrix(node)
    if matrix is not None:
        written_out(walk, (fused,), out, walk.count(matrix), drops=_drops_matrix(node))
    elif called:
        # The bias is computed from distances, [.., 2w - 1, 2w - 1, 2], to a number for each head.
        distances_shape = next((child.row.outputs[0] for child in called if child.row.outputs), shape)
        for child in called:
            run(walk, child)
            walk.take(walk.cur)
        tokens = prod((size + 1) / 2 for size in distances_shape[1:-1])
        cosine(walk, fused, out, round(x.elements / WINDOW_HEAD * tokens))
    else:
        scaled = walk.tape.op((fused,), walk.tape.new((), x.elements, walk.low))
        written_out(walk, (scaled, fused), out, round(x.elements / WINDOW_HEAD * tokens))
    joined = walk.tape.op((out,), walk.tape.new(shape, x.elements, walk.low))
    rest = sum(params[1:])
    copies, gradients = walk.weight(walk.param(rest, trainable=row.trainable), rest)
    final = walk.tape.new(shape, x.elements, walk.low)
    walk.give(_project(walk, (joined, *copies), final, gradients, width, final.elements * width))
    if matrix is not None:
        for child in called:
            if child.row.outputs[:1] != (matrix,):
                run(walk, child)


def container(walk: Walk, node: Node, run: Run) -> None:
    """Walk an attention module: projections, attention, what follows."""
    entry = walk.cur
    sources = projections(node)
    made: List[Tensor] = []
    matrix = _matrix(node)
    in_python = computes_matrix(node.row.kind) or node.row.kind in (HIDDEN_EAGER, HIDDEN_DROPPING)
    by_function = node.row.kind in ("T5Attention", HIDDEN_DROPPING) or drops_eagerly(node.row.kind)
    drops = (in_python and by_function) or _drops_matrix(node)
    positions = position_scores(node.row.kind)
    sinks = _sinks(node, sources)
    if sinks:
        # No fused kernel of PyTorch takes them, so the matrix is computed in Python.
        walk.head, in_python = sources[0].row.outputs[0][-1] // sinks, True
    style = Style(
        _grouped([child.row for child in sources]),
        in_python,
        drops and walk.drops(),
        positions,
        keeps_scores=bool(sinks) and named("kept-scores", node.row.kind),
        in_float=bool(sinks) or "T5" in node.row.kind,
    )
    if matrix is None and "Window" in node.row.kind and node.row.outputs:
        # Hidden: the usual windows of 7 x 7 tokens and heads of 32.
        shape = node.row.outputs[0]
        matrix = (*shape[:-1], max(1, shape[-1] // WINDOW_HEAD), _WINDOW_TOKENS)
    done = False
    for child in node.children:
        row = child.row
        if child in sources:
            wanted = conv_input(walk, row) if family_of(row.kind) == "conv" else input_shape(row)
            x = entry if wanted is None or wanted == entry.shape else walk.find(wanted)
            out = rule_for(row)(walk, row, walk.take(x))
            made.append(out)
            walk.give(out)
        elif not done and made and not child.children and family_of(row.kind) in _BETWEEN:
            if family_of(row.kind) in ("layer_norm", "rms_norm") and row.outputs:
                normalized = _normalized(walk, row, made)
                if normalized is None:
                    run(walk, child)
                else:
                    made = normalized
        elif not done and made and not child.children and family_of(row.kind) == "embedding":
            # A bias for each distance, added to the scores.
            walk.param(row.params, trainable=row.trainable)
        elif not done and len(made) == len(sources) and (child.children or row.called):
            done = True
            attend(walk, made, input_shape(row), matrix=matrix, style=style)
            run(walk, child)
        else:
            run(walk, child)
    if not done and made:
        attend(walk, made, node.row.outputs[0] if node.row.outputs else None, matrix=matrix, style=style)


def _sinks(node: Node, sources: Sequence[Node]) -> int:
    """Learned sinks, one number for each head, which take a part of every query's attention; 0: none.

    They are the only parameters that such a module has besides its layers.
    """
    heads = node.row.params
    if len(sources) != 3 or node.guessed or not 1 < heads <= _MOST_HEADS:
        return 0
    first = sources[0].row
    if family_of(first.kind) != "linear" or not first.outputs or first.outputs[0][-1] % heads:
        return 0
    return heads if first.outputs[0][-1] // heads >= _LEAST_HEAD else 0


def _normalized(walk: Walk, row: Layer, made: List[Tensor]) -> Optional[List[Tensor]]:
    """Queries or keys that have their own normalization: the last one of that size.

    None if there is none: what becomes keys and values is normalized before.
    """
    count = walk.count(row.outputs[0])
    for index in range(len(made) - 1, -1, -1):
        if made[index].elements == count:
            source = walk.tape.view(made[index], row.outputs[0])
            out = walk.tape.view(rule_for(row)(walk, row, source), made[index].shape)
            return [*made[:index], out, *made[index + 1 :]]
    return None


def _matrix(node: Node) -> Optional[Shape]:
    """The attention matrix's shape if a softmax or dropout over [.., queries, keys] has a row."""
    for child in node.children:
        row = child.row
        if family_of(row.kind) in ("softmax", "dropout") and row.called and row.outputs:
            shape = row.outputs[0]
            if len(shape) == 4 and shape[2] > 1 and shape[3] > 1 and shape[1] <= _MOST_HEADS:
                return shape
    return None


def _drops_matrix(node: Node) -> bool:
    """Whether a dropout over [.., queries, keys] has a row."""
    for child in node.children:
        row = child.row
        if family_of(row.kind) == "dropout" and row.called and row.outputs:
            shape = row.outputs[0]
            if len(shape) == 4 and shape[2] > 1 and shape[3] > 1 and shape[1] <= _MOST_HEADS:
                return True
    return False


def _grouped(rows: Sequence[Layer]) -> bool:
    """Whether keys are narrower than queries but as long: fewer key heads than query heads."""
    if len(rows) != 3 or not rows[0].outputs or not rows[1].outputs:
        return False
    queries, keys = rows[0].outputs[0], rows[1].outputs[0]
    return len(queries) == len(keys) and queries[:-1] == keys[:-1] and keys[-1] < queries[-1]


def multihead(walk: Walk, node: Node) -> None:
    """torch.nn.MultiheadAttention: packed projection, attention, output projection, all in one row."""
    row = node.row
    x = walk.find(input_shape(row))
    shape = row.outputs[0] if row.outputs else x.shape
    width = shape[-1]
    in_params = row.params if row.params else 0
    rest = sum(child.row.params for child in node.children)
    if not rest and in_params >= 4 * width * width:
        rest = width * width + width
        in_params -= rest
    walk.uses_matmul = True
    low = walk.lowered(x)
    copies, gradients = walk.weight(walk.param(in_params, trainable=row.trainable), in_params)
    packed = walk.tape.new((), 3 * walk.count(shape), walk.low)
    macs = packed.elements * width
    _project(walk, (low, *copies), packed, gradients, 3 * width, macs)
    separate = walk.tape.new((), packed.elements, walk.low)
    walk.tape.op((packed,), separate)
    out = walk.tape.new(shape, walk.count(shape), walk.low)
    if len(row.outputs) > 1 and len(row.outputs[1]) >= 2:
        # It returns its weights, averaged over the heads: the matrix itself has all of them.
        heads = max(1, width // walk.head)
        written_out(walk, (separate,), out, walk.count(row.outputs[1]) * heads)
    else:
        statistics = 4 * max(1, out.elements // walk.head)
        walk.tape.op(
            (separate,),
            out,
            saved=(separate, out),
            kept=(statistics,),
            back=(separate.bytes,),
            matmul=True,
            macs=2 * out.elements * tokens_of(out, out),
        )
    joined = walk.tape.new(shape, out.elements, walk.low)
    walk.tape.op((out,), joined)
    copies, gradients = walk.weight(walk.param(rest, trainable=row.trainable), rest)
    final = walk.tape.new(shape, out.elements, walk.low)
    walk.give(_project(walk, (joined, *copies), final, gradients, width, final.elements * width))
