"""Blocks and heads of image models that split, scale or join whole tensors."""

from __future__ import annotations

from typing import List

from slurm_gpumem.estimators.allocator.tape import Tensor
from slurm_gpumem.estimators.structural.layers.attention import Run
from slurm_gpumem.estimators.structural.layers.class_names import family_of
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


def selective_kernel(walk: Walk, node: Node, run: Run) -> None:
    """Convolutions of several sizes, stacked, scaled by a weight for each and channel, and added."""
    entry = walk.cur
    made: List[Tensor] = []
    for path in node.children[0].children:
        walk.cur = entry
        run(walk, path)
        made.append(walk.take(walk.cur))
    walk.tape.label = node.row.kind
    _own_params(walk, node.children[1:])
    stacked = walk.tape.new((), sum(part.elements for part in made), made[0].width)
    walk.tape.op(made, stacked)
    scaled = walk.tape.new((), stacked.elements, stacked.width)
    walk.tape.op((stacked,), scaled, saved=(stacked,), back=(stacked.bytes,))
    walk.give(walk.tape.op((scaled,), walk.tape.new(made[0].shape, made[0].elements, stacked.width)))


def _own_params(walk: Walk, nodes: List[Node]) -> None:
    """Register the parameters of layers over single numbers for each channel, which take no memory else."""
    for node in nodes:
        walk.param(node.row.params, trainable=node.row.trainable)
        _own_params(walk, node.children)


def fits_selective_kernel(node: Node) -> bool:
    """Whether its paths come first, and then what weighs them."""
    kinds = [child.row.kind for child in node.children]
    return kinds == ["ModuleList", "SelectiveKernelAttn"] and len(node.children[0].children) > 1


def _first(children: List[Node], family: str) -> int:
    return next(index for index, child in enumerate(children) if family_of(child.row.kind) == family)


# -- Heads that resize and join the results of several stages

_DROPS = ("p", "0.1")
"""Its default, unlike that of SegFormer's other dropouts."""


def joined_stages(walk: Walk, node: Node, run: Run) -> None:
    """SegFormer's head: every stage's tokens, resized to the first one's image, are joined and convolved.

    The list of resized images is alive until the head returns; autocast resizes and joins them in fp32.
    """
    fuse_at = next(i for i, child in enumerate(node.children) if family_of(child.row.kind) == "conv")
    fuse = node.children[fuse_at].row
    made: List[Tensor] = []
    projected = [part for child in node.children[:fuse_at] for part in (_members(child))]
    for child in projected:
        run(walk, child)
        made.append(walk.take(walk.cur))
    walk.tape.label = node.row.kind
    image = (fuse.inputs or fuse.outputs)[0]
    channels = made[0].shape[-1]
    shape = (image[0], channels, *image[2:])
    resized = [walk.tape.op((part,), walk.make(shape, walk.wide)) for part in made]
    joined = walk.make((image[0], channels * len(made), *image[2:]), walk.wide)
    walk.give(walk.tape.op(resized, joined))
    for child in node.children[fuse_at:]:
        if family_of(child.row.kind) == "dropout":
            child = Node(child.row._replace(attributes=(_DROPS,)))
        run(walk, child)
    for part in resized:
        walk.tape.hold(part)


def _members(node: Node) -> List[Node]:
    """The projections in a list, or the projection itself."""
    return node.children if node.row.kind == "ModuleList" else [node]


def fits_joined_stages(node: Node) -> bool:
    """Whether its layers are those of SegFormer's head."""
    families = [family_of(child.row.kind) for child in node.children]
    if "conv" not in families:
        return False
    parts = [part for child in node.children[: families.index("conv")] for part in _members(child)]
    return len(parts) > 1 and all(part.row.outputs and len(part.row.outputs[0]) == 3 for part in parts)
