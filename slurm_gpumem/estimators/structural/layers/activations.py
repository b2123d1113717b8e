"""Activations and dropout: what each allocates, and what it keeps for the backward pass.

A rule takes the walk, the layer's row and its input, records operations and returns the output.
"""

from __future__ import annotations

import re
from math import prod

from slurm_gpumem.estimators.allocator.tape import Tensor
from slurm_gpumem.estimators.structural.layers.class_names import may_add_input, named
from slurm_gpumem.estimators.structural.shapes import output_shape
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.summaries.types import Layer

_FLOAT = 4
_CUBIC_GELU = ("NewGELUActivation", "FastGELUActivation", "AccurateGELUActivation")
_WHOLE_CHANNELS = re.compile(r"^(?:Spatial)?(?:Feature)?(?:Alpha)?Dropout[123][dD]$|^FeatureAlphaDropout$")


def in_place(walk: Walk, row: Layer, x: Tensor) -> bool:
    """Whether an activation overwrites its input: as the summary says, else as usual for convolutions."""
    written = dict(row.attributes).get("inplace")
    if written is not None:
        return written == "True"
    if row.kind == "LeakyReLU" and not (walk.scopes and "Act" in walk.scopes[-1].kind):
        # It keeps its input, so it is not used in place.
        return False
    if named("computes-loss", walk.summary.name):
        return False  # transformers' activations are never in place
    producer = walk.tape.ops[-1] if walk.tape.ops else None
    if walk.scopes and walk.scopes[-1].entry.grad_id == x.grad_id and may_add_input(walk.scopes[-1].kind):
        # The block's input is needed again.
        return False
    return len(x.shape) >= 4 and producer is not None and producer.out.grad_id == x.grad_id


def relu(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    """ReLU and similar: keeps the output, or the input if the slope below zero is not zero."""
    if in_place(walk, row, x):
        out = walk.tape.over(x)
        return walk.tape.op((x,), out, saved=(out,))
    out = walk.make(output_shape(row, x), x.width, grad=x.grad)
    # LeakyReLU keeps its input, ReLU its output.
    return walk.tape.op((x,), out, saved=(x if row.kind == "LeakyReLU" else out,))


def output_act(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    """Activations whose derivative is computed from their output."""
    out = walk.make(output_shape(row, x), x.width, grad=x.grad)
    return walk.tape.op((x,), out, saved=(out,))


def input_act(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    """Activations whose derivative needs their input."""
    params = walk.param(row.params, trainable=row.trainable)
    out = walk.make(output_shape(row, x), x.width, grad=x.grad)
    return walk.tape.op((x,), out, saved=(x,), params=params)


def composed_act(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    """Activations written out in Python: every product keeps its factors."""
    if row.kind in _CUBIC_GELU:
        # 0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))); autocast computes the power, and what follows, in fp32.
        half = walk.tape.op((x,), walk.tape.new(x.shape, x.elements, x.width, grad=x.grad))
        wide = walk.widened(x)
        curve = walk.tape.new(x.shape, x.elements, wide.width, grad=x.grad)
        walk.tape.op(
            (wide,), curve, saved=(wide, curve), work=(wide.bytes, wide.bytes), back=(wide.bytes,) * 2
        )
        shifted = walk.tape.op(
            (curve,), walk.tape.new(x.shape, x.elements, wide.width, grad=x.grad), alias=True
        )
        return walk.tape.op(
            (half, shifted), walk.make(output_shape(row, x), wide.width), saved=(half, shifted)
        )
    if row.kind == "ErfGELU":
        # x · 0.5 · (1 + erf(x / √2)): the error function keeps its input, the product both factors.
        half = walk.tape.op((x,), walk.tape.new(x.shape, x.elements, x.width, grad=x.grad))
        scaled = walk.tape.op((x,), walk.tape.new(x.shape, x.elements, x.width, grad=x.grad))
        curve = walk.tape.new(x.shape, x.elements, x.width, grad=x.grad)
        walk.tape.op((scaled,), curve, saved=(scaled,), work=(x.bytes,))
        return walk.tape.op((half, curve), walk.make(output_shape(row, x), x.width), saved=(half, curve))
    if row.kind == "StarReLU":
        return star_relu(walk, row, x)
    gate = walk.tape.new(x.shape, x.elements, x.width, grad=x.grad)
    walk.tape.op((x,), gate, saved=(gate,), work=(x.bytes,))
    out = walk.make(output_shape(row, x), x.width, grad=x.grad)
    return walk.tape.op((x, gate), out, saved=(x, gate))


def star_relu(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    """Squared, scaled and shifted by learned numbers: the scale keeps the square, the square its input."""
    walk.param(row.params, trainable=row.trainable)
    root = walk.tape.new(x.shape, x.elements, x.width, grad=x.grad)
    walk.tape.op((x,), root, saved=(root,))
    wide = walk.widened(root)
    square = walk.tape.op((wide,), walk.tape.new(x.shape, x.elements, wide.width, grad=x.grad), saved=(wide,))
    scaled = walk.tape.new(x.shape, x.elements, wide.width, grad=x.grad)
    walk.tape.op((square,), scaled, saved=(square,), back=(wide.bytes,))
    return walk.tape.op((scaled,), walk.make(output_shape(row, x), wide.width, grad=x.grad), alias=True)


def softmax(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    """Softmax: autocast computes it in full precision; its output is kept."""
    x = walk.widened(x)
    out = walk.make(output_shape(row, x), x.width, grad=x.grad)
    return walk.tape.op((x,), out, saved=(out,))


def dropout(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    """A mask of one byte per element; nothing if the probability is 0."""
    probability = dict(row.attributes).get("p")
    if probability in ("0", "0.0") or (probability is None and not walk.drops()):
        return x
    out = walk.make(output_shape(row, x), x.width, grad=x.grad)
    if _WHOLE_CHANNELS.match(row.kind) and len(x.shape) > 2:
        # One number for each channel.
        rest = prod(x.shape[2:])
        return walk.tape.op((x,), out, kept=(x.elements // max(1, rest) * x.width,))
    return walk.tape.op((x,), out, kept=(x.elements,))


def drop_path(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    """Whole samples are dropped: one number each."""
    out = walk.make(output_shape(row, x), x.width, grad=x.grad)
    return walk.tape.op((x,), out, kept=(_FLOAT * walk.job.batch_size,))
