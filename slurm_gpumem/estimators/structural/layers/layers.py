"""What each family of layers allocates, keeps for the backward pass and needs temporarily.

A rule takes the walk, the layer's row and its input, records operations and returns the output.
"""

from __future__ import annotations

from typing import Callable, Dict, Tuple

from slurm_gpumem.estimators.allocator.tape import Tensor
from slurm_gpumem.estimators.structural.layers import activations
from slurm_gpumem.estimators.structural.layers.class_names import family_of
from slurm_gpumem.estimators.structural.layers.convolutions import bias_size, convolve, padded, sum_bytes
from slurm_gpumem.estimators.structural.shapes import output_shape
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.summaries.types import Layer

Rule = Callable[[Walk, Layer, Tensor], Tensor]

_INDEX_BYTES = 8
_FLOAT = 4
_SAMPLE_WIDE = 3
"""Numbers for each channel of an EvoNorm that also activates: weight, bias, and the gate's slope."""


def _identity(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    shape = output_shape(row, x)
    if shape == x.shape:
        return x
    if walk.count(shape) == x.elements:
        return walk.tape.view(x, shape)
    return walk.tape.op((x,), walk.make(shape, x.width, grad=x.grad))


def _linear(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    walk.uses_matmul = True
    x = walk.lowered(x)
    bias = 0
    if walk.ties_head and walk.tied_index and row.params - walk.tied in (0, output_shape(row, x)[-1]):
        params = walk.tied_index
    else:
        bias = bias_size(row, x, x.shape[-1] if x.shape else 0)
        params = walk.param(row.params, trainable=row.trainable, bias=bias)
    copies, gradients = walk.weight(params, row.params - bias)
    out = walk.make(output_shape(row, x), walk.low, grad=x.grad or bool(params))
    macs = out.elements * max(1, x.shape[-1] if x.shape else 1)
    return walk.tape.op(
        (x, *copies),
        out,
        saved=(x, *copies),
        passing=bias_sum(out) if bias and params else (),
        params=gradients,
        matmul=True,
        macs=macs,
    )


def bias_sum(out: Tensor) -> Tuple[int, int]:
    """Temporary memory of the backward pass if a bias of `out` is trained: its gradient is a long sum."""
    wide = max(1, out.shape[-1] if out.shape else 1)
    return 0, sum_bytes(out.elements // wide, wide)


def _norm(walk: Walk, row: Layer, x: Tensor, statistics: int, *, copies: bool = False) -> Tensor:
    params = walk.param(row.params, trainable=row.trainable)
    out = walk.make(output_shape(row, x), x.width, grad=x.grad or bool(params))
    copy = (x.bytes,) if copies else ()
    return walk.tape.op((x,), out, saved=(x,), kept=(statistics,), work=copy, back=copy, params=params)


def _batch_norm(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    channels = x.shape[1] if len(x.shape) > 1 else 1
    walk.buffers(2 * _FLOAT * channels + _INDEX_BYTES)
    return _norm(walk, row, x, 2 * _FLOAT * channels)


def _layer_norm(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    turned = _is_turned(walk, row, x)
    x = walk.widened(x)
    width = max(row.params // 2, 1) if row.params else _last(x)
    statistics = 2 * _FLOAT * max(1, x.elements // max(1, width))
    return _norm(walk, row, x, statistics, copies=turned)


def _is_turned(walk: Walk, row: Layer, x: Tensor) -> bool:
    """Whether channels come before the dimensions that are normalized: the kernel gets a copy."""
    if row.kind.startswith("LayerNorm2d"):
        return not walk.job.channels_last
    maker = walk.tape.ops[-1] if walk.tape.ops else None
    made = maker is not None and maker.out.store == x.store and family_of(maker.label) == "conv"
    return made and len(x.shape) == 4 and not walk.job.channels_last


def _group_norm(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    x = walk.widened(x)
    return _norm(walk, row, x, 2 * _FLOAT * 32 * walk.job.batch_size)


def _rms_norm(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    if row.kind in ("RMSNorm", "RmsNorm"):
        return _layer_norm(walk, row, x)
    if row.kind in ("RmsNorm2d", "RmsNormAct2d"):
        return _image_rms_norm(walk, row, x)
    # Written out in Python, in fp32: square, mean, rsqrt; the scaled input, in the model's own precision, is
    # kept for the weight's gradient. T5's multiplies its input as it came, not the wide copy.
    params = walk.param(row.params, trainable=row.trainable)
    rows = max(1, x.elements // _last(x))
    wide = x if x.width >= _FLOAT else walk.tape.new(x.shape, x.elements, _FLOAT, grad=x.grad)
    if wide is not x:
        walk.tape.op((x,), wide)
    factors = (wide, x) if wide is not x and row.kind.endswith("T5LayerNorm") else (wide,)
    width = wide.width if walk.amp else x.width
    scaled = walk.tape.new(x.shape, x.elements, width, grad=x.grad)
    walk.tape.op(
        (wide,),
        scaled,
        saved=factors,
        kept=(_FLOAT * rows,),
        work=(wide.bytes,),
        back=(wide.bytes, wide.bytes),
    )
    out = walk.make(output_shape(row, x), width, grad=x.grad or bool(params))
    return walk.tape.op((scaled,), out, saved=(scaled,), params=params, back=(scaled.bytes,))


def _evo_norm(walk: Walk, row: Layer, x: Tensor) -> Tensor:
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


def _image_rms_norm(walk: Walk, row: Layer, x: Tensor) -> Tensor:
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


def _frozen_norm(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    walk.buffers(4 * _FLOAT * (x.shape[1] if len(x.shape) > 1 else 1))
    middle = walk.tape.op((x,), walk.make(output_shape(row, x), x.width, grad=x.grad))
    return walk.tape.op((middle,), walk.make(output_shape(row, x), x.width, grad=x.grad))


def _batch_norm_act(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    return activations.relu(walk, row, _batch_norm(walk, row, x))


def _group_norm_act(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    return activations.relu(walk, row, _group_norm(walk, row, x))


def _layer_scale(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    params = walk.param(row.params, trainable=row.trainable)
    out = walk.make(output_shape(row, x), walk.wide if walk.amp else x.width)
    passing = bias_sum(out) if len(out.shape) == 3 else ()
    return walk.tape.op((x,), out, saved=(x,), params=params, back=(x.bytes,), passing=passing)


def _response_norm(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    """Scaled by its length relative to the other channels', then by weights: both products keep a factor."""
    params = walk.param(row.params, trainable=row.trainable)
    scaled = walk.tape.new(x.shape, x.elements, walk.wide if walk.amp else x.width, grad=x.grad)
    walk.tape.op((x,), scaled, saved=(x,), back=(x.bytes,))
    out = walk.make(output_shape(row, x), scaled.width, grad=x.grad or bool(params))
    return walk.tape.op((scaled, x), out, saved=(scaled,), params=params)


def _max_pool(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    x = padded(walk, row, x)
    out = walk.make(output_shape(row, x), x.width, grad=x.grad)
    return walk.tape.op((x,), out, saved=(x,), kept=(out.elements * _INDEX_BYTES,))


def _avg_pool(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    x = padded(walk, row, x)
    out = walk.make(output_shape(row, x), x.width, grad=x.grad)
    return walk.tape.op((x,), out, saved=(x,))


def _global_pool(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    shape = output_shape(row, x)
    if shape == x.shape:
        return x
    out = walk.make(shape, x.width, grad=x.grad)
    # To one value per channel it is a mean, which keeps nothing.
    keeps = len(shape) == len(x.shape) and any(size != 1 for size in shape[2:])
    return walk.tape.op((x,), out, saved=(x,) if keeps else ())


def _new_only(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    """Layers that make a new tensor and keep nothing: resizing, padding, shuffling."""
    return walk.tape.op((x,), walk.make(output_shape(row, x), x.width, grad=x.grad))


def _merge_add(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    other = walk.waiting(x)
    ins = (x,) if other is None else (x, walk.take(other))
    return walk.tape.op(ins, walk.make(output_shape(row, x), x.width, grad=x.grad), alias=True)


def _merge_multiply(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    return walk.tape.op((x,), walk.make(output_shape(row, x), x.width, grad=x.grad), saved=(x,))


def _embedding(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    out = walk.make(output_shape(row, x), walk.wide)
    if walk.tied_index and row.params == walk.tied:
        return walk.tape.op((), out, back=(row.params * walk.wide,))
    params = walk.param(row.params, trainable=row.trainable)
    if walk.tied and row.params == walk.tied and not walk.tied_index:
        # The output layer's backward makes the gradient first; this one's is added to it.
        walk.tied_index = params
        if walk.ties_head:
            return walk.tape.op((), out, back=(row.params * walk.wide,))
    return walk.tape.op((), out, params=params)


# cuDNN 9 keeps this many times the output's size per layer; the backward pass uses as much again (H200 runs).
_GATES = {"LSTM": 6, "GRU": 7, "RNN": 2}


def _rnn(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    """CuDNN's recurrent layers are one operation with a reserve for the gates of every step."""
    walk.uses_matmul = True
    walk.uses_conv = True
    x = walk.lowered(x)
    params = walk.param(row.params, trainable=row.trainable)
    copies, gradients = walk.weight(params, row.params)
    out = walk.make(output_shape(row, x), walk.low)
    layers = _rnn_layers(row, x, out)
    each = out.bytes * _GATES.get(row.kind, 4)
    return walk.tape.op(
        (x, *copies),
        out,
        saved=(x, out, *copies),
        kept=(each * layers,),
        work=(out.bytes * 2,),
        back=(each, row.params * walk.low),
        params=gradients,
        matmul=True,
        macs=row.params * max(1, out.elements // max(1, out.shape[-1])),
    )


def _rnn_layers(row: Layer, x: Tensor, out: Tensor) -> int:
    """The number of stacked layers that the parameters allow, one or two directions."""
    gates = {"LSTM": 4, "GRU": 3}.get(row.kind, 1)
    best: Tuple[float, int] = (float("inf"), 1)
    for directions in (1, 2):
        hidden = out.shape[-1] // directions
        if not hidden:
            continue
        first = directions * gates * hidden * (x.shape[-1] + hidden + 2)
        further = directions * gates * hidden * (directions * hidden + hidden + 2)
        layers = max(1, round((row.params - first) / further) + 1) if row.params > first else 1
        best = min(best, (abs(first + (layers - 1) * further - row.params), layers))
    return best[1]


def _last(tensor: Tensor) -> int:
    """The last dimension; 1 of a single number, which a loss among the layers gives."""
    return max(1, tensor.shape[-1]) if tensor.shape else 1


def _unknown(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    """An unknown class: a new output; its input is kept, as in most layers."""
    params = walk.param(row.params, trainable=row.trainable)
    if not row.outputs:
        return x
    out = walk.make(
        row.outputs[0], walk.low if params else min(x.width, walk.wide), grad=x.grad or bool(params)
    )
    walk.assume(f"{row.kind} keeps its input and makes one new tensor")
    macs = row.params * max(1, out.elements // _last(out)) if len(out.shape) < 4 else 0
    saved = (x,) if x.grad else ()
    return walk.tape.op((x,), out, saved=saved, params=params, matmul=bool(params), macs=macs)


RULES: Dict[str, Rule] = {
    "identity": _identity,
    "drop_path": activations.drop_path,
    "dropout": activations.dropout,
    "rnn": _rnn,
    "embedding": _embedding,
    "embedding_bag": _embedding,
    "conv_transpose": convolve,
    "linear": _linear,
    "conv": convolve,
    "batch_norm_act": _batch_norm_act,
    "frozen_norm": _frozen_norm,
    "batch_norm": _batch_norm,
    "instance_norm": _batch_norm,
    "evo_norm": _evo_norm,
    "group_norm_act": _group_norm_act,
    "group_norm": _group_norm,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "layer_scale": _layer_scale,
    "affine": _layer_scale,
    "response_norm": _response_norm,
    "hard": activations.input_act,
    "relu": activations.relu,
    "composed_act": activations.composed_act,
    "softmax": activations.softmax,
    "output_act": activations.output_act,
    "input_act": activations.input_act,
    "max_pool": _max_pool,
    "global_pool": _global_pool,
    "avg_pool": _avg_pool,
    "upsample": _new_only,
    "merge_cat": _new_only,
    "merge_add": _merge_add,
    "merge_mul": _merge_multiply,
}


def rule_for(row: Layer) -> Rule:
    """The rule of a leaf's class."""
    return RULES.get(family_of(row.kind), _unknown)


def norm_of(row: Layer) -> Rule:
    """The normalization inside a module that combines one with an activation."""
    return RULES[family_of(row.kind).replace("_act", "")]
