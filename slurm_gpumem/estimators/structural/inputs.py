"""The input of a convolution if the summary does not give it: from its weights and earlier tensors."""

from __future__ import annotations

from math import isqrt
from typing import Optional

from slurm_gpumem.estimators.structural.layers.kernels import may_take, needed_channels
from slurm_gpumem.estimators.structural.layers.layers import input_shape
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.summaries.types import Layer, Shape


def conv_input(walk: Walk, row: Layer) -> Optional[Shape]:
    """The input of a convolution. If the summary lacks it, the parser's inference may be too small."""
    shape = input_shape(row)
    if shape is not None and "inputs" not in row.derived:
        return shape
    known = shape if shape in walk.recent else None
    for candidate in (walk.cur.shape, known):
        if candidate is not None and may_take(row, candidate):
            return candidate
    joined = _concatenated(walk, row) or _transposed(walk, row) or _image_of_tokens(walk, row)
    if joined is not None:
        return joined
    for candidate in (shape, *reversed(walk.recent)):
        if candidate is not None and may_take(row, candidate):
            return candidate
    return shape


def _transposed(walk: Walk, row: Layer) -> Optional[Shape]:
    """A sequence whose features come last, as a convolution over time takes it."""
    for made in (walk.cur, *reversed(walk.recent.values())):
        if len(made.shape) != 3:
            continue
        turned = (made.shape[0], made.shape[2], made.shape[1])
        if may_take(row, turned):
            walk.recent[turned] = walk.tape.view(made, turned)
            return turned
    return None


def _image_of_tokens(walk: Walk, row: Layer) -> Optional[Shape]:
    """Tokens as the square image that a convolution shrinks, as attention with fewer keys does."""
    entries = [walk.scopes[-1].entry] if walk.scopes else []
    for made in (walk.cur, *entries):
        if len(made.shape) != 3 or not row.outputs or len(row.outputs[0]) != 4:
            continue
        side = isqrt(made.shape[1])
        image = (made.shape[0], made.shape[2], side, side)
        if side * side == made.shape[1] and may_take(row, image):
            walk.recent[image] = walk.tape.view(made, image)
            return image
    return None


def _concatenated(walk: Walk, row: Layer) -> Optional[Shape]:
    """The current tensor concatenated with an earlier one that has the channels which the weights need."""
    cur = walk.cur.shape
    for channels in needed_channels(row):
        wanted = (*cur[:1], channels, *cur[2:])
        missing = (*cur[:1], channels - cur[1], *cur[2:]) if len(cur) > 2 else ()
        if missing in walk.recent and may_take(row, wanted):
            return wanted
    return None
