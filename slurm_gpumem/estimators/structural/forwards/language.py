"""Language models: state-space layers without their own CUDA kernels, and mixtures of experts.

Of a state-space layer every step's state is a tensor.
"""

from __future__ import annotations

from math import ceil, prod
from typing import List, NamedTuple, Optional

from slurm_gpumem.estimators.allocator.tape import Tensor
from slurm_gpumem.estimators.structural.layers.attention import Run
from slurm_gpumem.estimators.structural.layers.class_names import family_of
from slurm_gpumem.estimators.structural.layers.layers import rule_for
from slurm_gpumem.estimators.structural.shapes import input_shape
from slurm_gpumem.estimators.structural.tree import Node
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.summaries.types import Layer, Shape

_FLOAT = 4
_STEP_SIZES = 16
_MOST_STATES = 256
_USUAL_STATES = 128
_CHUNK = 256
"""Steps of a chunk, by default in all classes."""
_TAPS_AND_BIAS = 5


def selective_scan(walk: Walk, node: Node, run: Run) -> None:
    """Mamba's mixer: decays and inputs of every step, channel and state are computed first, in fp32."""
    *before, last = [child for child in node.children if child.row.called]
    for child in before:
        run(walk, child)
    walk.tape.label = node.row.kind
    source = walk.take(walk.cur)
    shape = input_shape(last.row) or (*source.shape[:2], _channels(node))
    count = walk.count(shape)
    states = count * _states(node)
    # Decays, inputs and the states that follow from them; autocast multiplies with a copy of each state.
    kept = (states * _FLOAT,) * 3 + ((states * walk.low,) if walk.low < _FLOAT else ())
    out = walk.tape.new(shape, count, walk.low)
    walk.assume("Mamba runs without the kernels of mamba_ssm, so that every step's state is kept")
    walk.give(walk.tape.op((source,), out, kept=kept, work=(states * _FLOAT,), back=(states * _FLOAT,) * 2))
    run(walk, last)


def _linear(node: Node) -> List[Layer]:
    return [
        child.row for child in node.children if child.row.called and family_of(child.row.kind) == "linear"
    ]


def _channels(node: Node) -> int:
    """The mixer's width: half of what its first layer makes."""
    return _linear(node)[0].outputs[0][-1] // 2


def _states(node: Node) -> int:
    """States of a channel: its second layer makes step sizes (a sixteenth of the width) and twice as many."""
    width, made = node.row.outputs[0][-1], _linear(node)[1].outputs[0][-1]
    return (made - ceil(width / _STEP_SIZES)) // 2


def fits_selective_scan(node: Node) -> bool:
    """Whether its layers are Mamba's, of which some are used without being called."""
    linear = _linear(node)
    if len(linear) not in (3, 4) or not node.row.outputs or not all(row.outputs for row in linear):
        return False
    called = [child.row for child in node.children if child.row.called]
    return called[0] is linear[0] and called[-1] is linear[-1] and 1 < _states(node) <= _MOST_STATES


class _Chunks(NamedTuple):
    """The sizes of a mixer that scans chunks: width, heads and states of a head."""

    inner: int
    heads: int
    states: int


def _chunks(node: Node) -> Optional[_Chunks]:
    """They follow from its first layer and from its own parameters; None if they do not fit.

    The layer makes a gate and as many values (the norm's width), one input and one output of each state, and
    a step size for each head: inner + convolved + heads. Its own parameters are those of a convolution of
    four steps with a bias, and three numbers for each head: 5 · convolved + 3 · heads.
    """
    linear = _linear(node)
    norm = [child.row for child in node.children if child.row.kind.endswith("RMSNormGated")]
    inner = norm[0].outputs[0][-1] if norm and norm[0].outputs else _width_taken(linear)
    if not inner or not linear or not linear[0].outputs:
        return None
    made = linear[0].outputs[0][-1]
    convolved, odd = divmod(node.row.params - 3 * (made - inner), _TAPS_AND_BIAS - 3)
    heads, states = made - inner - convolved, (convolved - inner) // 2
    if odd or heads < 1 or inner % heads or states < 1 or node.row.params < convolved:
        return None
    return _Chunks(inner, heads, states if states <= _MOST_STATES else _USUAL_STATES)


def _width_taken(linear: List[Layer]) -> int:
    """The width of what its last layer takes."""
    last = linear[-1] if len(linear) == 2 else None
    return last.params // last.outputs[0][-1] if last is not None and last.outputs else 0


def chunk_scan(walk: Walk, node: Node, run: Run) -> None:
    """The second Mamba's mixer: attention within chunks of 256 steps, each product written out and summed.

    A product over all pairs of steps, heads and states exists whole before it is summed, and again in the
    backward pass, once for each factor; kept are the pairs' scores, decays and both together.
    """
    sizes = _chunks(node)
    *before, last = [child for child in node.children if child.row.called]
    for child in before:
        run(walk, child)
    if sizes is None:  # as `fits_chunk_scan` saw it, never
        run(walk, last)
        return
    walk.tape.label = node.row.kind
    source = walk.take(walk.cur)
    shape = node.row.outputs[0]
    rows = walk.count(shape) // max(1, shape[-1])
    # The sequence is filled up to whole chunks.
    steps = rows * ceil(shape[1] / _CHUNK) * _CHUNK // max(1, shape[1])
    head = sizes.inner // sizes.heads
    pairs = steps * _CHUNK * sizes.heads
    product = steps * sizes.heads * max(_CHUNK * sizes.states, _CHUNK * head, head * sizes.states) * _FLOAT
    states = steps * sizes.heads * sizes.states * _FLOAT
    values = steps * sizes.inner * _FLOAT
    walk.assume("Mamba runs without the kernels of mamba_ssm: products over pairs of steps are tensors")
    taken = (*shape[:-1], sizes.inner)
    out = walk.tape.new(taken, walk.count(taken), walk.low)
    walk.give(
        walk.tape.op(
            (source,),
            out,
            kept=(pairs * _FLOAT,) * 3 + (states,) * 3 + (values,) * 4,
            work=(product,),
            back=(product,) * 2,
        )
    )
    run(walk, last)


def fits_chunk_scan(node: Node) -> bool:
    """Whether its layers and its own parameters are those of the second Mamba."""
    linear = _linear(node)
    called = [child.row for child in node.children if child.row.called]
    if len(linear) != 2 or not node.row.outputs or len(node.row.outputs[0]) != 3:
        return False
    return called[0] is linear[0] and called[-1] is linear[-1] and _chunks(node) is not None


# -- Mixtures of experts of transformers 5: all weights in two tensors, multiplied in groups of tokens

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
