"""What a convolution's parameters imply: its kernel, its groups, and its possible inputs."""

from __future__ import annotations

from functools import lru_cache
from math import isqrt, prod
from typing import Iterator, Optional, Tuple

from slurm_gpumem.summaries.parsers.flow import longest_kernel
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
