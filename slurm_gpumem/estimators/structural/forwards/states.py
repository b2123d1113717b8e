"""State-space layers of transformers without their own CUDA kernels: every step's state is a tensor."""

from __future__ import annotations

from math import ceil
from typing import List

from slurm_gpumem.estimators.structural.attention import Run
from slurm_gpumem.estimators.structural.kinds import family_of
from slurm_gpumem.estimators.structural.layers import input_shape
from slurm_gpumem.estimators.structural.tree import Node
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.summaries.types import Layer

_FLOAT = 4
_STEP_SIZES = 16
_MOST_STATES = 256


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
