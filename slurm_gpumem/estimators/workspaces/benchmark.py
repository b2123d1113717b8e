"""Autotuning: temporary memory of the algorithms that cuDNN times (`torch.backends.cudnn.benchmark`).

PyTorch then asks for the largest workspace of the first algorithms that cuDNN names for a convolution, times
them and keeps the fastest (traced/replay.py: when, and what becomes of the memory). In single precision
the largest are those of the Fourier transforms, in which every plane of the input, of the output and of the
weight becomes one of complex numbers. The convolution itself and the gradient of its weight transform whole
planes, and hold them twice (to put them in order for the products); the gradient of the input transforms
tiles of 32 x 32, two of each plane at a time. Only that gradient does so with a stride, which cuts input and
weight into stride² smaller ones. Half precision, groups and dilation have none of it, the gradient of the
input of a kernel that is one wide (1 x k, or 1-D) neither; the others of a kernel of one tap only up to 4,096
positions. A 1-D layer is one of planes one high, transformed as planes as high as they are long: one of 256
positions and a few hundred channels tries 28 GiB.

Which algorithms cuDNN names first depends on its heuristics, so this is the most that is tried. What an H200
with cuDNN 9.19 tried is in tests/estimators/data/tried-h200.jsonl, and `test_workspaces` compares; the peaks
of whole runs are compared by `python -m lab.score.tries`.
"""

from __future__ import annotations

from math import ceil, prod
from typing import Sequence, Tuple

from slurm_gpumem.summaries.trace_types import Convolution, evaluate

_TILE = 32
_TILE_BYTES = _TILE * (_TILE // 2 + 1) * 8
_TILES_HELD = 2
_SMALLEST, _LARGEST = 16, 256
"""Sides of the transform of a whole plane."""
_MOST_POINTS = 64 * 64
"""Positions in a plane under kernels of one tap; planes of 128 x 128 that a measured script has were not
tried, those of 20 x 196 and 62 x 49 were."""
MOST_NUMBERS = 1 << 31
"""Complex numbers of the planes of one tensor, as 32 bits count them. Calls with more were seen to be tried
(33 to 99 GiB), but not for a single sample: a script that evaluates one large image at a time tried none of
the 33 to 260 GiB that its layers have by the rule. There it is not asked for, and named; a job does not
depend on it, because PyTorch passes over what does not fit beside it."""
_COMPLEX = 8
_FLOAT = 4
_MIRRORED = {"forward": "input", "input": "forward", "weight": "weight"}
"""A transposed convolution is the gradient of the input of another one."""


def tried_bytes(convolution: Convolution, batch: int) -> int:
    """Bytes of the largest workspace that cuDNN may try."""
    found, numbers = transformed(convolution, batch)
    return found if numbers < MOST_NUMBERS or evaluate(convolution.batch, batch) > 1 else 0


def skipped_bytes(convolution: Convolution, batch: int) -> int:
    """Bytes of a workspace that is larger than any that cuDNN was seen to try; 0 for most calls."""
    return transformed(convolution, batch)[0] - tried_bytes(convolution, batch)


def transformed(convolution: Convolution, batch: int) -> Tuple[int, int]:
    """Bytes of the Fourier transforms of a call, and complex numbers of the largest of their tensors."""
    c = convolution
    if c.transposed:
        mirrored = _MIRRORED[c.call]
        c = c._replace(
            call=mirrored, channels=c.outputs, outputs=c.channels, size=c.out_size, out_size=c.size
        )
    if c.dtype != "fp32" or len(c.size) > 2 or max(c.dilation, default=1) > 1 or c.groups > 1:
        return 0, 0
    rows = evaluate(c.batch, batch)
    found, numbers = (_tiled(c, rows), 0) if c.call == "input" else _whole(c, rows)
    if found and c.channels_last and max(c.stride) == 1:  # all are copied to the other order
        planes = c.channels * prod(c.size) + c.outputs * prod(c.out_size)
        found += _FLOAT * (rows * planes + c.channels * c.outputs * prod(c.kernel))
    return found, numbers


def _whole(c: Convolution, rows: int) -> Tuple[int, int]:
    """Of the convolution itself, or of the gradient of its weight: bytes, and the numbers of one tensor."""
    longest = max(n + k - 1 for n, k in zip(c.size, c.kernel))
    side = max(_SMALLEST, 1 << (longest - 1).bit_length())
    of_points = c.call == "forward" and prod(c.size) == 1
    too_many = prod(c.kernel) == 1 and prod(c.size) > _MOST_POINTS
    if side > _LARGEST or max(c.stride) > 1 or of_points or too_many:
        return 0, 0
    numbers = side * (side // 2 + 1)
    plane = 2 * numbers * _COMPLEX
    inputs, outputs, weights = rows * c.channels, rows * c.outputs, c.channels * c.outputs
    most = numbers * max(inputs, outputs, weights)
    if c.call == "weight":
        return plane * max(inputs + outputs, weights) + outputs * prod(c.out_size) * _FLOAT, most
    return plane * max(inputs + weights, outputs) + weights * prod(c.kernel) * _FLOAT, most


def _tiled(c: Convolution, rows: int) -> int:
    """Of the gradient of the input: tiles, of each of the stride's parts."""
    kernel = [ceil(k / s) for k, s in zip(c.kernel, c.stride)]
    if max(kernel) >= _TILE or min(kernel) == 1 or len(kernel) == 1:
        return 0
    parts = prod(c.stride)
    tiles = min(_TILES_HELD, prod(_tiles(c.out_size, kernel)))
    weights = parts * c.channels * c.outputs
    found = _TILE_BYTES * (tiles * rows * (parts * c.channels + c.outputs) + weights)
    if parts > 1:  # the parts themselves are put together from what lies apart, beside a copy of the output's
        planes = c.channels * prod(c.size) + c.outputs * prod(c.out_size)
        found += _FLOAT * (rows * planes + weights * prod(kernel))
    return found


def _tiles(sides: Sequence[int], kernel: Sequence[int]) -> Sequence[int]:
    return [ceil(n / (_TILE - k + 1)) for n, k in zip(sides, kernel)]
