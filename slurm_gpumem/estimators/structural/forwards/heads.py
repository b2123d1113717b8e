"""Heads of transformers' models that resize and join the results of several stages."""

from __future__ import annotations

from typing import List

from slurm_gpumem.estimators.allocator.tape import Tensor
from slurm_gpumem.estimators.structural.layers.attention import Run
from slurm_gpumem.estimators.structural.layers.kinds import family_of
from slurm_gpumem.estimators.structural.tree import Node
from slurm_gpumem.estimators.structural.walk import Walk

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
