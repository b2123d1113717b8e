"""Mixtures of experts of transformers 5: all weights in two tensors, multiplied in groups of tokens."""

from __future__ import annotations

from math import prod
from typing import Optional

from slurm_gpumem.estimators.allocator.tape import Tensor
from slurm_gpumem.estimators.structural.layers.attention import Run
from slurm_gpumem.estimators.structural.layers.kinds import family_of
from slurm_gpumem.estimators.structural.layers.layers import rule_for
from slurm_gpumem.estimators.structural.tree import Node
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.summaries.types import Layer, Shape

_ACTIVATIONS = ("hard", "input_act", "output_act", "relu", "composed_act")
_INDEX_BYTES = 8
_GATED = 3
"""Matrices of an expert: for the gate, the values and the way back."""


def grouped(walk: Walk, node: Node, run: Run) -> None:
    """`grouped_mm_experts_forward`: tokens sorted by expert, once for each of their experts.

    The grouped product does not follow autocast: it takes its tokens in the weights' precision, so that all
    of it is in fp32. Rows that belong to no expert are filled with zeros after each product, which makes a
    second tensor of its result.
    """
    act, shape = node.children[0].row, node.row.outputs[0]
    taken: Shape = act.outputs[0]
    pairs = walk.count(taken) // max(1, taken[-1])
    wide, inner = shape[-1], taken[-1]
    up = walk.param(node.row.params * 2 // _GATED, trainable=node.row.trainable)
    down = walk.param(node.row.params - node.row.params * 2 // _GATED, trainable=node.row.trainable)
    walk.uses_matmul = True
    tape, width = walk.tape, walk.wide
    entry = walk.take(walk.cur)

    def make(columns: int) -> Tensor:
        return tape.new((), pairs * columns, width)

    chosen = tape.op((entry,), make(wide), kept=(pairs * _INDEX_BYTES, pairs))
    both = tape.op(
        (chosen,), make(2 * inner), saved=(chosen,), params=up, matmul=True, macs=2 * pairs * inner * wide
    )
    both = tape.op((both,), make(2 * inner), kept=(pairs,))
    gate = tape.op((both,), tape.part(both, taken, pairs * inner))
    tape.label = act.kind
    active = rule_for(act)(walk, act, gate)
    tape.label = node.row.kind
    values = tape.op((both,), tape.part(both, taken, pairs * inner))
    scaled = tape.op((active, values), make(inner), saved=(active, values))
    back = tape.op(
        (scaled,), make(wide), saved=(scaled,), params=down, matmul=True, macs=pairs * inner * wide
    )
    back = tape.op((back,), make(wide), kept=(pairs,))
    # Times the router's weights, whose gradient is a product as large as the tokens, summed.
    weighted = tape.op((back,), make(wide), saved=(back,), passing=(0, back.bytes))
    ordered = tape.op((weighted,), make(wide), kept=(pairs * _INDEX_BYTES,))
    walk.give(tape.op((ordered,), tape.new(shape, walk.count(shape), entry.width), back=(ordered.bytes,)))


def _activation(node: Node) -> Optional[Layer]:
    """The only layer that has a row: the activation, over each token of each expert."""
    if len(node.children) != 1 or node.children[0].children:
        return None
    row = node.children[0].row
    return row if family_of(row.kind) in _ACTIVATIONS and row.called and row.outputs else None


def fits_grouped(node: Node) -> bool:
    """Whether its own weights are those of two or three matrices for each expert."""
    act, row = _activation(node), node.row
    if act is None or not row.outputs or len(row.outputs[0]) != 2 or len(act.outputs[0]) != 2:
        return False
    (tokens, wide), (pairs, inner) = row.outputs[0], act.outputs[0]
    return pairs >= tokens > 0 and row.params >= _GATED * prod((wide, inner))
