"""Normalizations that libraries write out in Python: every product and quotient keeps its factors."""

from __future__ import annotations

from slurm_gpumem.estimators.allocator.tape import Tensor
from slurm_gpumem.estimators.structural.shapes import output_shape
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.summaries.types import Layer

_FLOAT = 4
_SAMPLE_WIDE = 3
"""Numbers for each channel of an EvoNorm that also activates: weight, bias, and the gate's slope."""


def evo_norm(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    """timm's EvoNorm2dS0: x · sigmoid(v · x) / deviation · weight + bias, in the precision of its input.

    The deviation of a group is copied for each of its pixels; without an activation the gate is missing.
    """
    channels = x.shape[1] if len(x.shape) > 1 else 1
    params = walk.param(row.params, trainable=row.trainable)
    deviation = walk.tape.new(x.shape, x.elements, x.width)
    # The variance is computed in fp32: of a copy, which it keeps.
    copy = (x.elements * _FLOAT,) if x.width < _FLOAT else ()
    walk.tape.op((x,), deviation, saved=(x,), kept=copy, back=(x.elements * _FLOAT,))
    gated = x
    if row.params >= _SAMPLE_WIDE * channels:
        gate = walk.tape.new(x.shape, x.elements, x.width)
        walk.tape.op((x,), gate, saved=(x, gate), work=(x.bytes,), back=(x.bytes,))
        gated = walk.tape.new(x.shape, x.elements, x.width)
        walk.tape.op((x, gate), gated, saved=(x, gate))
    scaled = walk.tape.new(x.shape, x.elements, x.width)
    walk.tape.op((gated, deviation), scaled, saved=(gated, deviation))
    out = walk.make(output_shape(row, x), x.width)
    return walk.tape.op((scaled,), out, saved=(scaled,), work=(x.bytes,), back=(x.bytes,), params=params)


def image_rms_norm(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    """timm's RmsNorm2d: squares (in fp32 under autocast), their mean over channels, two products."""
    params = walk.param(row.params, trainable=row.trainable)
    wide = walk.widened(x)
    pixels = x.elements // max(1, x.shape[1] if len(x.shape) > 1 else 1)
    lengths = walk.tape.new((), pixels, wide.width)
    walk.tape.op((wide,), lengths, saved=(wide,), work=(wide.bytes,), back=(wide.bytes,))
    scaled = walk.tape.new(x.shape, x.elements, wide.width)
    walk.tape.op((x, lengths), scaled, saved=(x, lengths), back=(wide.bytes,))
    out = walk.make(output_shape(row, x), wide.width)
    return walk.tape.op((scaled,), out, saved=(scaled,), back=(wide.bytes,), params=params)
