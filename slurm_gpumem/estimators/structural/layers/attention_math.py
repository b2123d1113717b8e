"""What attention itself computes and keeps: scores, their softmax, the product with the values."""

from __future__ import annotations

from math import prod
from typing import List, NamedTuple, Optional, Sequence

from slurm_gpumem.estimators.allocator.tape import Tensor
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.estimators.versions import FUSED_ATTENTION, follows
from slurm_gpumem.summaries.types import Shape

_FLOAT = 4
WINDOW_HEAD = 32
_MOST_POSITIONS = 512


class Style(NamedTuple):
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
    walk: Walk, made: Sequence[Tensor], shape: object, *, matrix: Optional[Shape], style: Style
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
            macs=2 * count * tokens_of(made[1 if len(made) == 3 else 0], out),
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


def tokens_of(keys: Tensor, out: Tensor) -> int:
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


def cosine(walk: Walk, fused: Tensor, out: Tensor, matrix: int, values: Optional[Tensor] = None) -> None:
    """Queries and keys divided by their lengths, and scores by a learned temperature, which keeps them."""
    unit = []
    for _ in range(2):
        wide = walk.tape.new((), out.elements, walk.wide)
        unit.append(walk.lowered(walk.tape.op((fused,), wide, saved=(fused,))))
    scores = walk.tape.new((), matrix, walk.low)
    walk.tape.op(unit, scores, saved=tuple(unit), matmul=True, macs=matrix * WINDOW_HEAD)
    warm = walk.tape.new((), matrix, walk.wide)
    walk.tape.op((scores,), warm, saved=(scores,))
    probabilities = walk.tape.new((), matrix, walk.wide)
    walk.tape.op((warm,), probabilities, saved=(probabilities,))
    mixed = (walk.lowered(probabilities), fused if values is None else values)
    walk.tape.op(mixed, out, saved=mixed, matmul=True, macs=matrix * WINDOW_HEAD)


def compare_by_angle(walk: Walk, fused: Tensor, shape: Shape, matrix: int) -> None:
    """Attention by the cosine of queries and keys, which leaves a copy of the values and of its result."""
    count = fused.elements // 3
    out = walk.tape.new(shape, count, walk.low)
    values = walk.tape.op((fused,), walk.tape.new((), count, walk.low))
    cosine(walk, fused, out, matrix, values)
    walk.give(walk.tape.op((out,), walk.tape.new(shape, count, walk.low)))
