"""Blocks of timm in which one part of a wide layer's result scales another."""

from __future__ import annotations

from typing import List

from slurm_gpumem.estimators.structural.attention import Run
from slurm_gpumem.estimators.structural.kinds import family_of
from slurm_gpumem.estimators.structural.layers import rule_for
from slurm_gpumem.estimators.structural.tree import Node
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.estimators.tape import Tensor


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


def parallel_scaling(walk: Walk, node: Node, run: Run) -> None:
    """timm's parallel block: one layer makes queries, keys, values and the feed-forward pair's inner tokens.

    in_norm, in_proj, then out(attention(q, k, v)) + mlp_out(act(inner)).
    """
    children = node.children
    wide_at = _first(children, "linear")
    for child in children[: wide_at + 1]:
        run(walk, child)
    wide, width = walk.take(walk.cur), node.row.outputs[0][-1]
    act = next(child.row for child in children if family_of(child.row.kind) in ("input_act", "relu"))
    tokens = walk.count(node.row.outputs[0])
    walk.tape.label = "HiddenAttention"
    attended = walk.tape.new(node.row.outputs[0], tokens, walk.low)
    statistics = 4 * max(1, tokens // walk.head)
    pieces = walk.tape.op((wide,), walk.tape.part(wide, wide.shape, wide.elements))
    walk.tape.op(
        (pieces,),
        attended,
        saved=(wide, attended),
        kept=(statistics,),
        back=(attended.bytes, statistics),
        matmul=True,
        macs=2 * tokens * max(1, node.row.outputs[0][1]),
    )
    inner = walk.tape.part(wide, act.outputs[0], walk.count(act.outputs[0]))
    walk.tape.label = act.kind
    activated = rule_for(act)(walk, act, walk.tape.op((pieces,), inner))
    made: List[Tensor] = []
    rest = [child for child in children[wide_at + 1 :] if child.row is not act]
    outs = [child for child in rest if family_of(child.row.kind) == "linear"]
    for child, source in zip(outs, (attended, activated)):
        walk.tape.label = child.row.kind
        made.append(rule_for(child.row)(walk, child.row, source))
    walk.tape.label = node.row.kind
    walk.cur = made[0]
    if len(made) == 2 and made[0].shape == made[1].shape == (*made[0].shape[:-1], width):
        walk.add(made[0], made[1])
    for child in rest[rest.index(outs[-1]) + 1 :]:
        run(walk, child)


def fits_parallel_scaling(node: Node) -> bool:
    """Whether its layers are those of timm's parallel block, with a separate output for each part."""
    leaves = [child for child in node.children if not child.children and child.row.called]
    families = [family_of(child.row.kind) for child in leaves]
    shown = bool(node.row.outputs) and all(child.row.outputs for child in leaves)
    return shown and families.count("linear") == 3 and "input_act" in families


def joined_scaling(walk: Walk, node: Node, run: Run) -> None:
    """timm's parallel block with one output layer: out(cat(attention(q, k, v), act(inner))).

    The differential one computes two attentions, keeps both, and normalizes their difference.
    """
    children = node.children
    wide_at = _first(children, "linear")
    for child in children[: wide_at + 1]:
        run(walk, child)
    wide, shape = walk.take(walk.cur), node.row.outputs[0]
    rest = [child for child in children[wide_at + 1 :] if child.row.called]
    act = next(child.row for child in rest if family_of(child.row.kind) in ("input_act", "relu"))
    norm = next(
        (child.row for child in rest if child.row.params and "norm" in family_of(child.row.kind)), None
    )
    last_at = _first(rest, "linear")
    tokens, macs = walk.count(shape), 2 * walk.count(shape) * max(1, shape[1])
    pieces = walk.tape.op((wide,), walk.tape.part(wide, wide.shape, wide.elements))
    made: List[Tensor] = []
    for _ in range(1 if norm is None else 2):
        walk.tape.label = "HiddenAttention"
        out = walk.tape.new(shape, tokens, walk.low)
        kept = (4 * max(1, tokens // walk.head),)
        walk.tape.op(
            (pieces,), out, saved=(wide, out), kept=kept, back=(out.bytes, *kept), matmul=True, macs=macs
        )
        made.append(out)
    walk.tape.label = node.row.kind
    attended = made[0]
    if norm is not None:
        # The second is scaled by a learned number, and so kept; it is kept anyway.
        difference = walk.tape.op(made, walk.tape.new(norm.outputs[0], tokens, walk.low))
        walk.tape.label = norm.kind
        attended = rule_for(norm)(walk, norm, difference)
    walk.tape.label = act.kind
    inner = walk.tape.op((pieces,), walk.tape.part(wide, act.outputs[0], walk.count(act.outputs[0])))
    activated = rule_for(act)(walk, act, inner)
    walk.tape.label = node.row.kind
    both = (*shape[:-1], shape[-1] + act.outputs[0][-1])
    joined = walk.tape.new(both, walk.count(both), max(attended.width, activated.width))
    walk.give(walk.tape.op((attended, activated), joined))
    for child in rest[last_at:]:
        run(walk, child)


def fits_joined_scaling(node: Node) -> bool:
    """Whether its layers are those of timm's parallel block with one output layer for both parts."""
    leaves = [child.row for child in node.children if not child.children and child.row.called]
    linear = [row for row in leaves if family_of(row.kind) == "linear"]
    acts = [row for row in leaves if family_of(row.kind) in ("input_act", "relu")]
    if len(linear) != 2 or len(acts) != 1 or not all(row.outputs for row in leaves) or not node.row.outputs:
        return False
    width, inner = node.row.outputs[0][-1], acts[0].outputs[0][-1]
    # The weights of the last layer say that it takes both parts.
    return linear[0].outputs[0][-1] == 3 * width + inner and linear[1].params // width in (
        width + inner,
        width + inner + 1,
    )


def scaling(walk: Walk, node: Node, run: Run) -> None:
    """timm's parallel block, with an output layer for each part or one for both."""
    (parallel_scaling if fits_parallel_scaling(node) else joined_scaling)(walk, node, run)


def fits_scaling(node: Node) -> bool:
    """Whether it is either."""
    return fits_parallel_scaling(node) or fits_joined_scaling(node)


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
