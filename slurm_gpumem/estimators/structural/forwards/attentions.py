"""Attention that classes of timm and transformers write out, or that no fused kernel computes."""

from __future__ import annotations

from math import prod
from typing import List, Optional, Sequence

from slurm_gpumem.estimators.allocator.tape import Tensor
from slurm_gpumem.estimators.structural.layers import attention, attention_math
from slurm_gpumem.estimators.structural.layers.attention import Run
from slurm_gpumem.estimators.structural.layers.class_names import family_of
from slurm_gpumem.estimators.structural.layers.layers import rule_for
from slurm_gpumem.estimators.structural.tree import Node
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.summaries.types import Layer, Shape

_FLOAT = 4
_ACTIVATIONS = ("hard", "input_act", "relu")
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
    """Attention within blocks, [batch, blocks, tokens, width]: no fused kernel takes five dimensions."""
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
    """Whether one layer makes queries, keys and values, and the summary shows the result."""
    return bool(node.row.outputs) and len(node.row.outputs[0]) > 2 and len(attention.projections(node)) == 1


fits_blocks_of_tokens = fits_mask_units = fits_fused


def halo(walk: Walk, node: Node, run: Run) -> None:
    """HaloNet's attention: blocks of pixels look at a larger window around them, which is copied out."""
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


def cross_covariance(walk: Walk, node: Node, run: Run) -> None:
    """XCiT's attention between channels: by the cosine of their queries and keys over all tokens."""
    first, *following = node.children
    run(walk, first)
    walk.tape.label = node.row.kind
    matrix = next(child.row.outputs[0] for child in following if _is_matrix(child))
    attention_math.compare_by_angle(walk, walk.take(walk.cur), node.row.outputs[0], walk.count(matrix))
    for child in following:
        if not _is_matrix(child):
            run(walk, child)


def _is_matrix(node: Node) -> bool:
    shape = node.row.outputs[0] if node.row.outputs else ()
    return family_of(node.row.kind) in ("softmax", "dropout") and len(shape) == 4 and shape[2] == shape[3]


def fits_cross_covariance(node: Node) -> bool:
    """Whether one layer makes queries, keys and values, and a row shows the matrix."""
    return (
        fits_fused(node)
        and node.children[0] is attention.projections(node)[0]
        and any(map(_is_matrix, node.children))
    )


def biased_heads(walk: Walk, node: Node, run: Run) -> None:
    """LeViT's attention, written out: scores with a bias for each distance, then an activation.

    Its own parameters are a number for each head and distance, of which there are as many as keys.
    """
    at = next(index for index, child in enumerate(node.children) if _activation(child) is not None)
    made: List[Tensor] = []
    entry = walk.cur
    for child in node.children[:at]:
        walk.cur = entry
        run(walk, child)
        made.append(walk.take(walk.cur))
    walk.tape.label = node.row.kind
    shape = node.row.outputs[0]
    tokens, keys = _tokens(shape), _tokens(made[0].shape)
    heads = max(1, node.row.params // max(1, keys))
    samples = walk.count(shape) // max(1, prod(shape[1:]))
    act = _activation(node.children[at])
    taken = act.outputs[0] if act is not None else shape
    out = walk.tape.new(taken, walk.count(taken), walk.low)
    # Queries first: what makes them comes last where there are fewer of them.
    attention_math.written_out(walk, made[::-1], out, samples * heads * tokens * keys)
    walk.give(out)
    for child in node.children[at:]:
        run(walk, child)


def _tokens(shape: Shape) -> int:
    return max(1, prod(shape[2:]) if len(shape) == 4 else shape[1])


def _activation(node: Node) -> Optional[Layer]:
    """The activation that a child is or begins with."""
    first = node
    while first.children:
        first = first.children[0]
    return first.row if family_of(first.row.kind) in _ACTIVATIONS and first.row.outputs else None


def fits_biased_heads(node: Node) -> bool:
    """Whether modules with a norm make queries, keys and values, and an activation follows."""
    acts = [_activation(child) is not None for child in node.children]
    if True not in acts or not node.row.outputs or not node.row.params:
        return False
    before = node.children[: acts.index(True)]
    return 0 < len(before) < 3 and all(child.children for child in before)
