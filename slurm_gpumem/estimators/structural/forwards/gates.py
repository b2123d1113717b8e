"""Blocks of timm in which one part of a wide layer's result scales another."""

from __future__ import annotations

from typing import List

from slurm_gpumem.estimators.structural.layers.attention import Run
from slurm_gpumem.estimators.structural.layers.kinds import family_of
from slurm_gpumem.estimators.structural.layers.layers import rule_for
from slurm_gpumem.estimators.structural.tree import Node
from slurm_gpumem.estimators.structural.walk import Walk


def gated_conv(walk: Walk, node: Node, run: Run) -> None:
    """MambaOut's block: an activated half scales the other half, some channels of which are convolved first.

    norm, fc1, split into (gate, rest, convolved), fc2(act(gate) · cat(rest, conv(convolved))).
    """
    children = node.children
    wide_at, conv_at, act_at = (_first(children, family) for family in ("linear", "conv", "input_act"))
    for child in children[: wide_at + 1]:
        run(walk, child)
    wide = walk.cur
    gate = walk.half((*wide.shape[:-1], wide.shape[-1] // 2))
    row = children[conv_at].row
    walk.tape.label = row.kind
    source = walk.tape.part(gate, row.outputs[0], walk.count(row.outputs[0]))
    convolved = rule_for(row)(walk, row, walk.tape.op((gate,), source))
    walk.tape.label = node.row.kind
    joined = walk.tape.new(gate.shape, gate.elements, max(gate.width, convolved.width))
    walk.tape.op((gate, convolved), joined)
    act = children[act_at].row
    walk.multiply(rule_for(act)(walk, act, gate), joined)
    for child in children[max(conv_at, act_at) + 1 :]:
        run(walk, child)


def fits_gated_conv(node: Node) -> bool:
    """Whether its layers are those of MambaOut's block."""
    families = [family_of(child.row.kind) for child in node.children if not child.children]
    shown = all(child.row.outputs for child in node.children)
    return shown and families.count("linear") == 2 and {"conv", "input_act"} <= set(families)


def _first(children: List[Node], family: str) -> int:
    return next(index for index, child in enumerate(children) if family_of(child.row.kind) == family)
