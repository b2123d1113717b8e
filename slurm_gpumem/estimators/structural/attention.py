"""Attention between projections: no row shows it; the projections around it do."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Callable, List, Optional, Sequence

from slurm_gpumem.estimators.structural.inputs import conv_input
from slurm_gpumem.estimators.structural.kinds import (
    computes_matrix,
    drops_eagerly,
    family_of,
    is_attention,
    keeps_scores,
    position_scores,
)
from slurm_gpumem.estimators.structural.layers import input_shape, rule_for
from slurm_gpumem.estimators.structural.tree import Node
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.estimators.structural.workspaces import sum_bytes
from slurm_gpumem.estimators.tape import Tensor
from slurm_gpumem.estimators.versions import FUSED_ATTENTION, follows
from slurm_gpumem.summaries.types import Layer, Shape

Run = Callable[[Walk, Node], None]

HIDDEN_EAGER, HIDDEN_DROPPING = "HiddenEagerAttention", "HiddenDroppingAttention"
"""Attention inside hidden blocks that materializes its matrix, without and with dropout on it."""

_FLOAT = 4
_MOST_HEADS = 64
_LEAST_HEAD = 16
_WINDOW_HEAD = 32
_WINDOW_TOKENS = 49
_MOST_POSITIONS = 512
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
    # If the text does not give a layer's input, its weights do.
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
        attend(walk, packed, taken, matrix=None, style=_Style(grouped=False, written_out=False))
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
        bias, style = [], _Style(grouped=False, written_out=False)
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
    heads = max(1, shape[-1] // _WINDOW_HEAD)
    # The bias has one entry for each distance within a window: (2w - 1) in every direction.
    distances = max(1.0, table / heads)
    dimensions = max(1, len(shape) - 2)
    tokens = ((distances ** (1 / dimensions) + 1) / 2) ** dimensions if table else shape[-2]
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
        _cosine(walk, fused, out, round(x.elements / _WINDOW_HEAD * tokens))
    else:
        scaled = walk.tape.op((fused,), walk.tape.new((), x.elements, walk.low))
        written_out(walk, (scaled, fused), out, round(x.elements / _WINDOW_HEAD * tokens))
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
    style = _Style(
        _grouped([child.row for child in sources]),
        in_python,
        drops and walk.drops(),
        positions,
        keeps_scores=bool(sinks) and keeps_scores(node.row.kind),
        in_float=bool(sinks) or "T5" in node.row.kind,
    )
    if matrix is None and "Window" in node.row.kind and node.row.outputs:
        # Hidden: the usual windows of 7 x 7 tokens and heads of 32.
        shape = node.row.outputs[0]
        matrix = (*shape[:-1], max(1, shape[-1] // _WINDOW_HEAD), _WINDOW_TOKENS)
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


@dataclass(frozen=True)
class _Style:
    """How a module computes its attention, beyond what its rows show."""

    grouped: bool
    """Fewer heads for keys than for queries."""
    written_out: bool
    """The matrix is computed although no row shows it."""
    drops: bool = False
    """Dropout acts on the matrix, so that a mask and the result are kept as well."""
    positions: int = 0
    """Number of relative positions whose scores are kept too; -1: one for each distance; 0: none."""
    keeps_scores: bool = False
    """The scores before the softmax are kept too: a sink is compared with their sum."""
    in_float: bool = False
    """The softmax is computed in fp32 in any precision."""


def attend(
    walk: Walk, made: Sequence[Tensor], shape: object, *, matrix: Optional[Shape], style: _Style
) -> None:
    """Record attention over the projections; its output has `shape`."""
    walk.uses_matmul = True
    made = [walk.lowered(walk.take(tensor)) for tensor in made]
    total = sum(tensor.elements for tensor in made)
    if isinstance(shape, tuple):
        count = walk.count(shape)
    else:
        shape, count = made[0].shape, (total // 3 if len(made) == 1 else made[0].elements)
    # A fused projection is wider than its queries; the output is as large as the queries.
    out = walk.tape.new(shape, count, walk.low)
    if walk.caches or (walk.caches_decoder and any("Decoder" in scope.kind for scope in walk.scopes)):
        made = _cached(walk, made)
    if matrix is not None:
        if style.positions:
            columns = style.positions if style.positions > 0 else 2 * min(_MOST_POSITIONS, matrix[-1])
            kept = (walk.count(matrix) // matrix[-1] * columns * walk.low,) * 2
            first = walk.tape.new((), made[0].elements, walk.low)
            made = [walk.tape.op(made[:1], first, kept=kept), *made[1:]]
        written_out(walk, made, out, walk.count(matrix), drops=style.drops)
    elif style.written_out or not follows(FUSED_ATTENTION, walk.job.torch):
        keys = made[1 if len(made) == 3 else 0].shape
        tokens = max(1, prod(keys[1:-1]))
        if style.positions:
            # The scores of queries and keys with positions, from which those of each pair are gathered.
            columns = style.positions if style.positions > 0 else 2 * min(_MOST_POSITIONS, tokens)
            kept = (count // walk.head * columns * walk.low,) * 2
            first = walk.tape.new((), made[0].elements, walk.low)
            made = [walk.tape.op(made[:1], first, kept=kept), *made[1:]]
        matrix_size = count // walk.head * tokens
        written_out(
            walk,
            made,
            out,
            matrix_size,
            drops=style.drops,
            keeps_scores=style.keeps_scores,
            in_float=style.in_float,
        )
    elif style.grouped and len(made) == 3 and walk.low == 4:
        _grouped_math(walk, made, out)
    else:
        # In half precision Hopper uses cuDNN's kernel, and so loads the library.
        walk.uses_conv = walk.uses_conv or walk.low == 2
        statistics = 4 * max(1, count // walk.head)
        made = [_separated(walk, tensor, count) for tensor in made]
        walk.tape.op(
            made,
            out,
            saved=(*made, out),
            kept=(statistics,),
            back=(out.bytes, statistics),
            matmul=True,
            macs=2 * count * _tokens(made[1 if len(made) == 3 else 0], out),
        )
    walk.give(out)


def _separated(walk: Walk, made: Tensor, count: int) -> Tensor:
    """Queries, keys and values as views of a fused projection.

    Their gradients are stacked into one tensor, which is brought into the projection's order.
    """
    if made.elements <= count:
        return made
    for _ in range(2):
        made = walk.tape.op((made,), walk.tape.part(made, made.shape, made.elements))
    return made


def _tokens(keys: Tensor, out: Tensor) -> int:
    """How many keys each query is compared with, as far as the shapes show."""
    shape = keys.shape if len(keys.shape) > 2 else out.shape
    if len(shape) == 4 and shape[1] > shape[3]:
        return max(1, shape[2] * shape[3])  # channels come first: a convolution made them
    return max(1, prod(shape[1:-1])) if len(shape) > 2 else 1


def _cached(walk: Walk, made: Sequence[Tensor]) -> List[Tensor]:
    """Keys and values go through transformers' cache, which copies them and outlives the step."""
    if len(made) == 1 and walk.rotary:
        # Rotated queries are new, keys and values are copied: nothing is a view of the fused result any more.
        separate = [walk.tape.new((), made[0].elements // 3, made[0].width) for _ in range(3)]
        for tensor in separate:
            walk.tape.op(made, tensor)
        walk.tape.survivors += separate[1:]
        return separate
    if len(made) == 1:
        fused = made[0]
        copy = walk.tape.new((), fused.elements * 2 // 3, fused.width)
        walk.tape.op((fused,), copy)
        walk.tape.survivors.append(copy)
        return [fused, copy]
    result = [made[0]]
    for tensor in made[1:]:
        copy = walk.tape.new(tensor.shape, tensor.elements, tensor.width)
        walk.tape.op((tensor,), copy)
        walk.tape.survivors.append(copy)
        result.append(copy)
    return result


def _grouped(rows: Sequence[Layer]) -> bool:
    """Whether keys are narrower than queries but as long: fewer key heads than query heads."""
    if len(rows) != 3 or not rows[0].outputs or not rows[1].outputs:
        return False
    queries, keys = rows[0].outputs[0], rows[1].outputs[0]
    return len(queries) == len(keys) and queries[:-1] == keys[:-1] and keys[-1] < queries[-1]


def _grouped_math(walk: Walk, made: Sequence[Tensor], out: Tensor) -> None:
    """In fp32 no fused kernel supports grouped heads: keys and values are repeated, the matrix is kept."""
    queries = made[0]
    scaled = walk.tape.op((queries,), walk.tape.new((), queries.elements, queries.width))
    keys = walk.tape.op((made[1],), walk.tape.new((), queries.elements, queries.width))
    values = walk.tape.op((made[2],), walk.tape.new((), queries.elements, queries.width))
    tokens = max(1, queries.shape[-2] if len(queries.shape) == 3 else queries.shape[1])
    written_out(walk, (scaled, keys, values), out, queries.elements // walk.head * tokens)


def written_out(
    walk: Walk,
    made: Sequence[Tensor],
    out: Tensor,
    matrix: int,
    *,
    drops: bool = False,
    keeps_scores: bool = False,
    in_float: bool = False,
) -> None:
    """Scores, softmax and the product with the values, each a separate tensor."""
    wide = _FLOAT if in_float else walk.wide
    scores = walk.tape.new((), matrix, walk.low)
    walk.tape.op(made[:2], scores, saved=tuple(made[:2]), matmul=True, macs=matrix * walk.head)
    if keeps_scores:
        scores = walk.tape.op((scores,), walk.tape.new((), matrix, wide))
    probabilities = walk.tape.new((), matrix, wide)
    saved = (scores, probabilities) if keeps_scores else (probabilities,)
    walk.tape.op((scores,), probabilities, saved=saved)
    if drops:
        dropped = walk.tape.new((), matrix, wide)
        probabilities = walk.tape.op((probabilities,), dropped, kept=(matrix,))
    low = walk.lowered(probabilities)
    if low.width > walk.low:
        low = walk.tape.op((low,), walk.tape.new((), matrix, walk.low))
    mixed = (low, *made[-1:])
    walk.tape.op(mixed, out, saved=mixed, matmul=True, macs=matrix * walk.head)


def _cosine(walk: Walk, fused: Tensor, out: Tensor, matrix: int, values: Optional[Tensor] = None) -> None:
    """Queries and keys divided by their lengths, and scores by a learned temperature, which keeps them."""
    unit = []
    for _ in range(2):
        wide = walk.tape.new((), out.elements, walk.wide)
        unit.append(walk.lowered(walk.tape.op((fused,), wide, saved=(fused,))))
    scores = walk.tape.new((), matrix, walk.low)
    walk.tape.op(unit, scores, saved=tuple(unit), matmul=True, macs=matrix * _WINDOW_HEAD)
    warm = walk.tape.new((), matrix, walk.wide)
    walk.tape.op((scores,), warm, saved=(scores,))
    probabilities = walk.tape.new((), matrix, walk.wide)
    walk.tape.op((warm,), probabilities, saved=(probabilities,))
    mixed = (walk.lowered(probabilities), fused if values is None else values)
    walk.tape.op(mixed, out, saved=mixed, matmul=True, macs=matrix * _WINDOW_HEAD)


def compare_by_angle(walk: Walk, fused: Tensor, shape: Shape, matrix: int) -> None:
    """Attention by the cosine of queries and keys, which leaves a copy of the values and of its result."""
    count = fused.elements // 3
    out = walk.tape.new(shape, count, walk.low)
    values = walk.tape.op((fused,), walk.tape.new((), count, walk.low))
    _cosine(walk, fused, out, matrix, values)
    walk.give(walk.tape.op((out,), walk.tape.new(shape, count, walk.low)))


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
            macs=2 * out.elements * _tokens(out, out),
        )
    joined = walk.tape.new(shape, out.elements, walk.low)
    walk.tape.op((out,), joined)
    copies, gradients = walk.weight(walk.param(rest, trainable=row.trainable), rest)
    final = walk.tape.new(shape, out.elements, walk.low)
    walk.give(_project(walk, (joined, *copies), final, gradients, width, final.elements * width))
