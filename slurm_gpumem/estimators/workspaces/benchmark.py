"""How much temporary memory cuDNN takes when it tries algorithms (`torch.backends.cudnn.benchmark`).

PyTorch then asks for the largest workspace of all algorithms that apply to a convolution, times them, and
keeps the fastest, whose workspace may be that one. In single precision the largest are those of the Fourier
transforms: every plane of the input, of the output and of the weight becomes one of complex numbers, either
as a whole or in tiles of 32 x 32; a stride cuts input and weight into stride² smaller ones. In half
precision they do not apply, and at most 7 % more was allocated. Ten networks in fp32 that were measured with
it (models/lab/ground-truth, rows-toggles) reserved between 0.99 and 1.24 times the larger of the peak by this
rule and the usual one.
"""

from __future__ import annotations

from math import ceil, prod
from typing import Sequence

from slurm_gpumem.summaries.trace_types import Convolution, evaluate

_TILE = 32
_LARGEST = 256
"""The longest transform of a whole plane."""
_COMPLEX_BYTES = 8
BEYOND = 1.25
"""What requests allow for, times the rule, from those ten: other algorithms, segments that are not full."""


def tried_bytes(convolution: Convolution, batch: int) -> int:
    """Bytes of the largest workspace that cuDNN may try."""
    c = convolution
    kernel = [ceil(k / s) for k, s in zip(c.kernel, c.stride)]
    if c.dtype != "fp32" or len(c.size) > 2 or max(c.dilation, default=1) > 1 or prod(kernel) == 1:
        return 0
    large, small = (c.outputs, c.channels) if c.transposed else (c.channels, c.outputs)
    phases = prod(c.stride)
    planes = evaluate(c.batch, batch) * (large * phases + small)
    weights = c.channels * c.outputs // c.groups * phases
    sides = [min(n, m) for n, m in zip(c.size, c.out_size)]
    return max(_whole(sides, kernel) * (planes + weights), _tiled(sides, kernel, planes, weights))


def _whole(sides: Sequence[int], kernel: Sequence[int]) -> int:
    """Bytes of one transformed plane; 0 where it is too large."""
    longest = max(n + k - 1 for n, k in zip(sides, kernel))
    side = 1 << (longest - 1).bit_length()
    return side * (side // 2 + 1) * _COMPLEX_BYTES if side <= _LARGEST else 0


def _tiled(sides: Sequence[int], kernel: Sequence[int], planes: int, weights: int) -> int:
    if max(kernel) >= _TILE:
        return 0
    tiles = prod(ceil(n / (_TILE - k + 1)) for n, k in zip(sides, kernel))
    return _TILE * (_TILE // 2 + 1) * _COMPLEX_BYTES * (planes * tiles + weights)
