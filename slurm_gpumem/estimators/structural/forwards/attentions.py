"""Attention that classes of timm and transformers write out, or that no fused kernel computes."""

from __future__ import annotations

from math import prod
from typing import List, Sequence

from slurm_gpumem.estimators.structural import attention
from slurm_gpumem.estimators.structural.attention import Run
from slurm_gpumem.estimators.structural.kinds import family_of
from slurm_gpumem.estimators.structural.layers import rule_for
from slurm_gpumem.estimators.structural.tree import Node
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.estimators.tape import Tensor
from slurm_gpumem.summaries.types import Shape

_FLOAT = 4
_NEST_HEAD = 32
_HIERA_HEAD = 72
"""About the width of Hiera's heads: those of its sizes are between 56 and 96."""
_HIERA_WINDOW = 64
"""Tokens of a window in its first stage."""


def math_attention(walk: Walk, fused: Tensor, shape: Shape, matrix: int) -> None:
    """PyTorch's formula where no fused kernel applies: in fp32, over scaled copies of queries and keys."""
    walk.uses_matmul = True
    count, each = walk.count(shape), fused.elements // 3
    source = fused
    if count < each:
        # Queries are pooled: the maximum keeps its input and its result.
        source = walk.tape.new((), count, fused.width)
        walk.tape.op((fused,), source, saved=(fused, source))
    queries = walk.tape.op((source,), walk.tape.new((), count, _FLOAT))
    keys = walk.tape.op((fused,), walk.tape.new((), each, _FLOAT))
    values = walk.tape.op((fused,), walk.tape.new((), each, _FLOAT))
    macs = matrix * walk.head
    scores = walk.tape.new((), matrix, _FLOAT)
    walk.tape.op((queries, keys), scores, saved=(queries, keys), matmul=True, macs=macs)
    chances = walk.tape.new((), matrix, _FLOAT)
    walk.tape.op((scores,), chances, saved=(chances,))
    mixed = walk.tape.new(shape, count, _FLOAT)
    walk.tape.op((chances, values), mixed, saved=(chances, values), matmul=True, macs=macs)
    walk.give(walk.tape.op((mixed,), walk.tape.new(shape, count, walk.low)))


def blocks_of_tokens(walk: Walk, node: Node, run: Run) -> None:
    """Attention within blocks, [batch, blocks, tokens, width]: five dimensions, which no fused kernel takes."""
    shape = node.row.outputs[0]
    _around(walk, node, run, shape, walk.count(shape) // _NEST_HEAD * shape[-2])


def mask_units(walk: Walk, node: Node, run: Run) -> None:
    """Hiera's attention: within windows in the first two stages, over all tokens in the others."""
    shape = node.row.outputs[0]
    tokens = prod(walk.cur.shape[1:-1])
    made = [row.outputs[0] for row in walk.summary.layers if row.kind == node.row.kind and row.outputs]
    first = max(prod(other[1:-1]) for other in made)
    if 4 * tokens < first:
        attention.container(walk, node, run)
        return
    narrowest = min(other[-1] for other in made)
    heads = max(1, round(narrowest / _HIERA_HEAD)) * shape[-1] // narrowest
    queries = walk.count(shape) // max(1, shape[-1])
    windows = max(1, first // _HIERA_WINDOW)
    _around(walk, node, run, shape, queries * heads * max(1, tokens // windows))


def _around(walk: Walk, node: Node, run: Run, shape: Shape, matrix: int) -> None:
    """The fused projection, the attention and what follows it."""
    first = attention.projections(node)[0]
    at = node.children.index(first)
    for child in node.children[: at + 1]:
        run(walk, child)
    walk.tape.label = node.row.kind
    fused = walk.lowered(walk.take(walk.cur))
    math_attention(walk, fused, shape, matrix)
    for child in node.children[at + 1 :]:
        if family_of(child.row.kind) != "dropout" or child.row.outputs[:1] == (shape,):
            run(walk, child)


def fits_fused(node: Node) -> bool:
    """Whether one layer makes queries, keys and values, and the text shows the result."""
    return bool(node.row.outputs) and len(node.row.outputs[0]) > 2 and len(attention.projections(node)) == 1


def positional_gate(walk: Walk, node: Node, run: Run) -> None:
    """ConViT's attention: scores of content and of position, each through a softmax, mixed by a learned gate."""
    entry = walk.cur
    linear = [child.row for child in node.children if family_of(child.row.kind) == "linear"]
    fused_row, position_row, value_row, out_row = linear
    fused = rule_for(fused_row)(walk, fused_row, entry)
    distances = position_row.outputs[0]
    # The distances of all pairs, the same for every sample, are copied for each.
    expanded = walk.tape.new((*distances[:-1], 3), walk.count((*distances[:-1], 3)), walk.low, grad=False)
    walk.tape.op((), expanded)
    position = rule_for(position_row)(walk, position_row, expanded)
    walk.tape.label = node.row.kind
    matrix = position.elements
    scores = walk.tape.new((), matrix, walk.low)
    walk.tape.op((fused,), scores, saved=(fused,), matmul=True, macs=matrix * walk.head)
    chances = []
    for source in (scores, position):
        made = walk.tape.new((), matrix, walk.wide)
        chances.append(walk.tape.op((source,), made, saved=(made,)))
    mixed = walk.tape.new((), matrix, walk.wide)
    walk.tape.op(chances, mixed, saved=chances)
    # Divided in place by its sum: what it was is kept.
    scaled = walk.tape.op((mixed,), walk.tape.over(mixed), kept=(mixed.bytes,))
    low = walk.lowered(scaled)
    values = rule_for(value_row)(walk, value_row, entry)
    walk.tape.label = node.row.kind
    out = walk.tape.new(entry.shape, entry.elements, walk.low)
    walk.tape.op((low, values), out, saved=(low, values), matmul=True, macs=matrix * walk.head)
    walk.give(walk.tape.op((out,), walk.tape.new(entry.shape, entry.elements, walk.low)))
    for child in node.children[[child.row for child in node.children].index(out_row) :]:
        run(walk, child)


def fits_positional_gate(node: Node) -> bool:
    """Whether its layers are those of ConViT's attention."""
    linear = [child.row for child in node.children if family_of(child.row.kind) == "linear"]
    return len(linear) == 4 and all(row.outputs for row in linear) and len(linear[1].outputs[0]) == 4


def halo(walk: Walk, node: Node, run: Run) -> None:
    """HaloNet's attention: blocks of 8 x 8 pixels look at a larger window around them, which is copied out."""
    entry = walk.cur
    first, second = (child.row for child in node.children[:2])
    queries, both = (rule_for(row)(walk, row, entry) for row in (first, second))
    walk.tape.label = node.row.kind
    position = node.children[2].row
    walk.param(position.params, trainable=position.trainable)
    # [batch · heads, blocks, queries of a block, keys of its window]
    _, blocks, _, seen = position.outputs[0]
    matrix = walk.count(position.outputs[0])
    pixels = prod(second.outputs[0][2:])
    windows = walk.tape.new((), both.elements * blocks * seen // max(1, pixels), walk.low)
    walk.tape.op((both,), windows)
    ordered = walk.tape.op((queries,), walk.tape.new((), queries.elements, walk.low))
    macs = matrix * max(1, queries.elements * seen // max(1, matrix))
    scores = walk.tape.new((), matrix, walk.low)
    walk.tape.op(
        (ordered, windows),
        scores,
        saved=(ordered, windows),
        kept=(ordered.bytes,) * 2,  # queries in the order of rows and of columns, for scores of distances
        matmul=True,
        macs=macs,
    )
    chances = walk.tape.new((), matrix, walk.wide)
    low = walk.lowered(walk.tape.op((scores,), chances, saved=(chances,)))
    shape = node.row.outputs[0]
    out = walk.tape.new(shape, walk.count(shape), walk.low)
    walk.give(walk.tape.op((low, windows), out, saved=(low, windows), matmul=True, macs=macs))


def fits_halo(node: Node) -> bool:
    """Whether its layers are those of HaloNet's attention, without pooling."""
    kinds: List[str] = [child.row.kind for child in node.children if child.row.kind != "Identity"]
    known: Sequence[str] = ("Conv2d", "Conv2d", "PosEmbedRel")
    shown = bool(node.row.outputs) and all(child.row.outputs for child in node.children[:3])
    return kinds == list(known) and shown and len(node.children[2].row.outputs[0]) == 4
