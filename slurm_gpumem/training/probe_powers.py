"""Every known convolution at every usual batch size, for `probe --powers`.

Two samples of a convolution teach trees how cuDNN decides; all powers of two tell what it does decide for the
batch sizes that people train with.
"""

from __future__ import annotations

import gzip
import json
import random
from math import prod
from typing import Iterator, List

from slurm_gpumem.training.probe_cases import (
    LARGEST_TENSOR,
    RUNS,
    SHAPES,
    TIMM,
    Case,
    Shape,
    convolution_case,
)

LEAST, MOST = 4, 512
TYPES = ("fp32", "bf16")


def power_cases(seed: int) -> List[Case]:
    """The cases, all of one convolution together, convolutions in a random order."""
    shapes = [json.loads(text) for text in sorted({json.dumps(shape) for shape in _shapes()})]
    random.Random(seed).shuffle(shapes)
    return [
        convolution_case(shape, dtype, last=False, batch=batch)
        for shape in shapes
        for dtype in TYPES
        for batch in _powers(shape)
    ]


def _shapes() -> Iterator[Shape]:
    for path in (SHAPES, TIMM, RUNS):
        with gzip.open(path, "rt") as file:
            # Those of runs tell a type, a layout and a batch beside.
            yield from (shape[:10] for shape in json.load(file))


def _powers(shape: Shape) -> List[int]:
    channels, outputs, size, stride = shape[0], shape[1], shape[2], shape[4]
    sample = 4 * max(channels * prod(size), outputs * prod(size) // max(1, prod(stride)))
    powers = []
    batch = LEAST
    while batch <= MOST and batch * sample <= LARGEST_TENSOR:
        powers.append(batch)
        batch *= 2
    return powers
