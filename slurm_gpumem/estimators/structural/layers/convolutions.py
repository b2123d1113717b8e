"""Convolutions: kernel, groups and input, which their parameters imply, and temporary memory; their rule."""

from __future__ import annotations

from functools import lru_cache
from math import isqrt, prod
from typing import Iterator, Optional, Tuple

from slurm_gpumem.estimators.allocator.tape import Tensor
from slurm_gpumem.estimators.structural.layers.class_names import family_of
from slurm_gpumem.estimators.structural.shapes import input_shape, output_shape
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.estimators.workspaces.convolutions import reduction_bytes, usual_bytes
from slurm_gpumem.summaries.parsers.flow import longest_kernel
from slurm_gpumem.summaries.trace_types import Convolution, Reduction
from slurm_gpumem.summaries.types import Layer, Shape

_USUAL_TAPS = {3: (3, 1, 5, 7, 9), 4: (9, 1, 25, 49), 5: (27, 1, 9, 3, 125)}
"""By the dimensions of a tensor, most common first."""
_CENTRED = (9, 25, 49, 81, 121, 169, 961, 3, 5, 7, 31, 27, 125, 343)
"""Kernels of depthwise convolutions: with odd sides."""
_TAPS = (1, 9, 25, 49, 3, 5, 7, 4, 16, 27, 81, 121, 125, 2, 8, 64, 256, 343, 961)

_STRIDES = (1, 2, 3, 4, 8, 16, 32, 7, 14)
_ROUNDED, _UNPADDED = 0.985, 1.1
"""What a side may be of stride times output: sizes are stated in 10 kB, and kernels take an edge."""


def taps_and_groups(row: Layer, channels: int) -> Tuple[int, int]:
    """Kernel elements and groups of a convolution, from its parameters and channels."""
    out = row.outputs[0][1] if row.outputs and len(row.outputs[0]) > 1 else 0
    made = row.outputs[0] if row.outputs else ()
    return _taps_and_groups(_weights_and_bias(row), out, row.kernel, channels, longest_kernel(made))


def _weights_and_bias(row: Layer) -> int:
    """A convolution's parameters without the gain per output that standardized weights have."""
    out = row.outputs[0][1] if row.outputs and len(row.outputs[0]) > 1 else 0
    return row.params - out if row.kind.startswith("ScaledStdConv") and row.params > out else row.params


@lru_cache(maxsize=4096)
def _taps_and_groups(
    params: int, out: int, kernel: Optional[Tuple[int, ...]], channels: int, longest: int
) -> Tuple[int, int]:
    if out < 1 or channels < 1 or not params:
        return (prod(kernel) if kernel else 1), 1
    counts = [params // out - bias for bias in (0, 1) if params % out == 0 and params // out > bias]
    if kernel:
        taps = prod(kernel)
        for count in counts:
            if count % taps == 0 and channels % (count // taps) == 0:
                return taps, channels // (count // taps)
        # Besides weight and bias there are others (a gain, a length): find the approximate number of groups.
        groups = round(channels * taps * out / params)
        return (taps, groups) if groups > 1 and channels % groups == 0 == out % groups else (taps, 1)
    # The most common first: one group, then one for each channel; others are rare.
    for count in counts:
        if count % channels == 0 and _is_kernel(count // channels, longest):
            return count // channels, 1
    for count in counts:
        if count in _CENTRED and out % channels == 0:
            return count, channels
    for count in counts:
        for taps in _TAPS[1:]:
            if count % taps == 0 and channels % (count // taps) == 0:
                return taps, channels // (count // taps)
    return 1, 1


def _is_kernel(taps: int, longest: int) -> bool:
    return taps <= longest or taps in _TAPS or taps == isqrt(taps) ** 2


def first_convolution(row: Layer, *, cuts_patches: bool) -> Tuple[int, Tuple[int, ...]]:
    """Channels of a model's first convolution's input, and the usual factor by which it shrinks each size.

    An even kernel cuts patches in models with layer norms; elsewhere its patches overlap by half.
    """
    out = max(1, row.outputs[0][1])
    dimensions = len(row.outputs[0]) - 2
    for channels in (3, 1, 4, 2):
        taps, groups = taps_and_groups(row, channels)
        side = round(taps ** (1 / dimensions))
        if groups == 1 and side**dimensions == taps and row.params - out * channels * taps in (0, out):
            if side % 2 == 0:
                return channels, (max(2, side if cuts_patches else side // 2),) * dimensions
            return channels, ((2,) * dimensions if dimensions == 2 else (1,) * dimensions)
    # Frames of a video are not shrunk with their pixels.
    return 3, (2, 2) if dimensions == 2 else (1, *(2,) * (dimensions - 1))


def input_of_first(row: Layer, elements: int) -> Optional[Shape]:
    """The input of a model's first convolution where all inputs together have this many numbers.

    None if no usual stride explains the number: there are other inputs, or it is not stated.
    """
    batch, _, *sizes = row.outputs[0]
    dimensions = len(sizes)
    for channels in dict.fromkeys((3, 4, 1, 2, *needed_channels(row))):
        taps, groups = taps_and_groups(row, channels)
        if groups != 1 or row.params - row.outputs[0][1] * channels * taps not in (0, row.outputs[0][1]):
            continue
        plane = prod((batch, channels, *sizes))
        larger = (elements / plane) ** (1 / dimensions) if plane > 0 else 0.0
        stride = next((usual for usual in _STRIDES if _ROUNDED <= larger / usual <= _UNPADDED), 0)
        if stride:
            return (batch, channels, *(round(size * larger) for size in sizes))
    return None


def may_take(row: Layer, shape: Shape) -> bool:
    """Whether a convolution can take an input of this shape: its weights fit and it does not enlarge it."""
    if not row.outputs or not row.params or len(shape) != len(row.outputs[0]) or len(shape) < 3:
        return False
    return _may_take(_weights_and_bias(row), row.outputs[0], row.kernel, shape)


@lru_cache(maxsize=4096)
def _may_take(params: int, made: Shape, kernel: Optional[Tuple[int, ...]], shape: Shape) -> bool:
    if any(0 < before < after for before, after in zip(shape[2:], made[2:])):
        return False
    taps, groups = _taps_and_groups(params, made[1], kernel, shape[1], longest_kernel(made))
    weights = made[1] * max(1, shape[1] // groups) * taps
    return params - weights in (0, made[1]) and (groups in (1, shape[1]) or kernel is not None)


def needed_channels(row: Layer) -> Iterator[int]:
    """Input channels that an ungrouped convolution's parameters allow, common kernels first."""
    out = row.outputs[0][1] if row.outputs and len(row.outputs[0]) > 2 else 0
    params = _weights_and_bias(row)
    for per_output in (params // out, params // out - 1) if out > 0 else ():
        rank = len(row.outputs[0])
        for taps in (prod(row.kernel),) if row.kernel else _USUAL_TAPS.get(rank, _USUAL_TAPS[4]):
            if per_output >= taps and per_output % taps == 0:
                yield per_output // taps


def sides(taps: int, dimensions: int) -> Tuple[int, ...]:
    """The sides of a kernel with this number of elements: equal if possible."""
    side = round(taps ** (1 / dimensions))
    if side**dimensions == taps:
        return (side,) * dimensions
    return (*(1,) * (dimensions - 1), taps)


# -- The input where the text does not give it: from the weights and earlier tensors


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


# -- Temporary memory, by the rules measured for traces: of convolutions, and of sums split among blocks

_SMS = 132
"""Multiprocessors of the measured GPU. Used for every GPU, so that a job's memory differs between GPUs by
their context alone."""


@lru_cache(maxsize=8192)
def convolution_bytes(convolution: Convolution, rows: int) -> Tuple[int, int, int]:
    """cuDNN's workspaces for a convolution over `rows` samples: forward, input's and weight's gradient."""
    return usual_bytes(convolution, rows)


@lru_cache(maxsize=8192)
def sum_bytes(inputs: int, outputs: int) -> int:
    """The buffer of a sum that makes `outputs` numbers from `inputs` each."""
    vector = next(count for count in (4, 2, 1) if outputs % count == 0)
    return reduction_bytes(Reduction((inputs,), (outputs,), vector), 1, _SMS)


@lru_cache(maxsize=8192)
def convolution_of(
    data: Shape,
    made: Shape,
    kernel: Tuple[int, ...],
    groups: int,
    *,
    transposed: bool,
    dtype: str,
    last: bool,
) -> Convolution:
    """The request to cuDNN, as far as the shapes show: kernels that are centred and not dilated."""
    larger, smaller = (made[2:], data[2:]) if transposed else (data[2:], made[2:])
    stride = tuple(max(1, round(before / max(1, after))) for before, after in zip(larger, smaller))
    padding = tuple(
        max(0, (step * (after - 1) + side - before + 1) // 2)
        for before, after, side, step in zip(larger, smaller, kernel, stride)
    )
    return Convolution(
        call="forward",
        dtype=dtype,
        batch=(),
        channels=data[1],
        outputs=made[1],
        size=data[2:],
        out_size=made[2:],
        kernel=kernel,
        stride=stride,
        padding=padding,
        dilation=(1,) * len(kernel),
        groups=groups,
        transposed=transposed,
        channels_last=last,
    )


# -- The rule


def padded(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    """The input of a layer with TensorFlow's padding: a copy with a border as wide as its kernel needs."""
    made = output_shape(row, x)
    if not row.kind.endswith("Same") or len(x.shape) != 4 or len(made) != 4:
        return x
    side = max(row.kernel) if row.kernel else 3
    wide = tuple(
        max(before, round(before / max(1, after)) * (after - 1) + side)
        for before, after in zip(x.shape[2:], made[2:])
    )
    count = x.elements // max(1, prod(x.shape[2:])) * prod(wide)
    return walk.tape.op((x,), walk.tape.new((*x.shape[:2], *wide), count, x.width, grad=x.grad))


def convolve(walk: Walk, row: Layer, x: Tensor) -> Tensor:
    """A convolution: keeps its input and, under autocast, a copy of its weight; cuDNN takes a workspace."""
    walk.uses_conv = True
    x = walk.lowered(padded(walk, row, x))
    channels = x.shape[1] if len(x.shape) > 1 else 1
    taps, groups = taps_and_groups(row, channels)
    bias = bias_size(row, x, channels // groups * taps)
    params = walk.param(row.params, trainable=row.trainable, bias=bias)
    copies, gradients = walk.weight(params, row.params - bias)
    grad = x.grad or bool(params)
    out = walk.make(output_shape(row, x), walk.low, grad=grad)
    forward, of_input, of_weight = _workspaces(walk, row, x, out, taps, groups)
    return walk.tape.op(
        (x, *copies),
        out,
        saved=(x, *copies),
        work=(forward,) if forward else (),
        passing=(of_input, of_weight if params else 0),
        params=gradients,
        macs=_conv_macs(row, x, out, channels // groups * taps),
    )


def bias_size(row: Layer, x: Tensor, reach: int) -> int:
    """Parameters beyond the weight of a layer whose outputs each depend on `reach` numbers; 0: none."""
    shape = output_shape(row, x)
    wide = shape[-1] if shape and family_of(row.kind) == "linear" else shape[1] if len(shape) > 1 else 0
    rest = row.params - wide * reach
    return rest if 0 < rest <= max(wide, row.params // 50) else 0


def _conv_macs(row: Layer, x: Tensor, out: Tensor, reach: int) -> int:
    """One product for every number that an output depends on; for a transposed one the reverse."""
    if family_of(row.kind) == "conv_transpose":
        return x.elements * max(1, row.params // max(1, x.shape[1] if len(x.shape) > 1 else 1))
    return out.elements * max(1, reach)


def _workspaces(
    walk: Walk, row: Layer, x: Tensor, out: Tensor, taps: int, groups: int
) -> Tuple[int, int, int]:
    """cuDNN's temporary memory: forward, for the input's gradient and for the weight's."""
    if len(x.shape) < 3 or len(x.shape) != len(out.shape) or min(*x.shape[1:], *out.shape[1:]) < 1:
        return 0, 0, 0
    if x.shape[1] % groups or out.shape[1] % groups:
        groups = 1
    dimensions = len(x.shape) - 2
    kernel = row.kernel if row.kernel and len(row.kernel) == dimensions else sides(taps, dimensions)
    convolution = convolution_of(
        x.shape,
        out.shape,
        kernel,
        groups,
        transposed=family_of(row.kind) == "conv_transpose",
        dtype=walk.dtype,
        last=walk.job.channels_last,
    )
    return convolution_bytes(convolution, x.elements // max(1, prod(x.shape[1:])))
