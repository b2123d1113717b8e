"""How much temporary memory cuDNN takes when it tries algorithms (`torch.backends.cudnn.benchmark`).

PyTorch then asks for the largest workspace of the first algorithms that cuDNN names for a convolution, times
them, keeps the fastest, and gives back what it has cached. In single precision the largest are those of the
Fourier transforms, in which every plane of the input, of the output and of the weight becomes one of complex
numbers. The convolution itself and the gradient of its weight transform whole planes, and hold them twice (to
put them in order for the products); the gradient of the input transforms tiles of 32 x 32, two of each plane
at a time. Only that gradient does so with a stride, which cuts input and weight into stride² smaller ones.
Half precision, groups and dilation have none of it, the gradient of the input of a 1 x 1 kernel neither.

Which algorithms cuDNN names first depends on its heuristics, so this is the most that is tried. What an H200
with cuDNN 9.19 tried is in tests/estimators/data/tried-h200.jsonl; `test_workspaces` compares.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod
from typing import Sequence

from slurm_gpumem.summaries.trace_types import Convolution, evaluate

_TILE = 32
_TILE_BYTES = _TILE * (_TILE // 2 + 1) * 8
_TILES_HELD = 2
_SMALLEST, _LARGEST = 16, 256
"""Sides of the transform of a whole plane."""
_MOST_SEEN = 9 << 30
"""The largest workspace for whole planes that was seen to be tried. Whether larger ones are (the rule has up
to 260 GiB for wide layers on one large image) is not known; a job does not depend on them, because PyTorch
passes over what does not fit beside it."""
_COMPLEX = 8
_FLOAT = 4
BEYOND = 1.15
"""What requests allow for, times the rule: other algorithms, segments that are not full."""
_MIRRORED = {"forward": "input", "input": "forward", "weight": "weight"}
"""A transposed convolution is the gradient of the input of another one."""


def tried_bytes(convolution: Convolution, batch: int) -> int:
    """Bytes of the largest workspace that cuDNN may try."""
    c = convolution
    if c.transposed:
        mirrored = _MIRRORED[c.call]
        c = replace(
            c, call=mirrored, channels=c.outputs, outputs=c.channels, size=c.out_size, out_size=c.size
        )
    if c.dtype != "fp32" or len(c.size) > 2 or max(c.dilation, default=1) > 1 or c.groups > 1:
        return 0
    rows = evaluate(c.batch, batch)
    found = _tiled(c, rows) if c.call == "input" else _whole(c, rows)
    if found and c.channels_last and max(c.stride) == 1:  # all are copied to the other order
        planes = c.channels * prod(c.size) + c.outputs * prod(c.out_size)
        found += _FLOAT * (rows * planes + c.channels * c.outputs * prod(c.kernel))
    return found


def _whole(c: Convolution, rows: int) -> int:
    """Of the convolution itself, or the gradient of its weight: whole planes, twice."""
    longest = max(n + k - 1 for n, k in zip(c.size, c.kernel))
    side = max(_SMALLEST, 1 << (longest - 1).bit_length())
    of_points = c.call == "forward" and prod(c.size) == 1
    if side > _LARGEST or max(c.stride) > 1 or of_points:
        return 0
    plane = 2 * side * (side // 2 + 1) * _COMPLEX
    inputs, outputs, weights = rows * c.channels, rows * c.outputs, c.channels * c.outputs
    if c.call == "weight":
        found = plane * max(inputs + outputs, weights) + outputs * prod(c.out_size) * _FLOAT
    else:
        found = plane * (inputs + weights) + weights * prod(c.kernel) * _FLOAT
    return found if found <= _MOST_SEEN else 0


def _tiled(c: Convolution, rows: int) -> int:
    """Of the gradient of the input: tiles, of each of the stride's parts."""
    kernel = [ceil(k / s) for k, s in zip(c.kernel, c.stride)]
    if max(kernel) >= _TILE or prod(kernel) == 1:
        return 0
    parts = prod(c.stride)
    tiles = min(_TILES_HELD, prod(_tiles(c.out_size, kernel)))
    weights = parts * c.channels * c.outputs
    found = _TILE_BYTES * (tiles * rows * (parts * c.channels + c.outputs) + weights)
    if parts > 1:  # the parts themselves are put together from what lies apart
        found += _FLOAT * (rows * c.channels * prod(c.size) + weights * prod(kernel))
    return found


def _tiles(sides: Sequence[int], kernel: Sequence[int]) -> Sequence[int]:
    return [ceil(n / (_TILE - k + 1)) for n, k in zip(sides, kernel)]
