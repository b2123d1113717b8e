"""Known convolutions at every usual batch size, for `probe --powers`.

Two samples of a convolution teach trees how cuDNN decides; all powers of two tell what it does decide for the
batch sizes that people train with.
"""

from __future__ import annotations

import gzip
import json
import random
from math import prod
from typing import Iterator, List, Set

from lab.probe.cases import (
    LARGEST_TENSOR,
    RUNS,
    SHAPES,
    TIMM,
    Case,
    Shape,
    convolution_case,
)

LEAST, MOST = 4, 512
TYPES = ("bf16", "fp32", "fp16")


def power_cases(seed: int) -> List[Case]:
    """The cases, convolutions in a random order: first as most models run them, last as few do."""
    shapes = [(text, json.loads(text)) for text in sorted({json.dumps(shape) for shape in _shapes()})]
    random.Random(seed).shuffle(shapes)
    often_last = _channels_last_of_runs()
    stages = (
        (TYPES, False, shapes),
        (TYPES, True, [(text, shape) for text, shape in shapes if text in often_last]),
        (TYPES[:2], True, [(text, shape) for text, shape in shapes if text not in often_last]),
    )
    return [
        convolution_case(shape, dtype, last=last, batch=batch)
        for dtypes, last, chosen in stages
        for _, shape in chosen
        for dtype in dtypes
        if not last or len(shape[2]) == 2
        for batch in _powers(shape)
    ]


def _shapes() -> Iterator[Shape]:
    for path in (SHAPES, TIMM, RUNS):
        with gzip.open(path, "rt") as file:
            # Those of runs tell a type, a layout and a batch beside.
            yield from (shape[:10] for shape in json.load(file))


def _channels_last_of_runs() -> Set[str]:
    """Convolutions that models run with channels last, asked or not."""
    with gzip.open(RUNS, "rt") as file:
        return {json.dumps(shape) for *shape, _, last, _ in json.load(file) if last}


def _powers(shape: Shape) -> List[int]:
    channels, outputs, size, stride = shape[0], shape[1], shape[2], shape[4]
    sample = 4 * max(channels * prod(size), outputs * prod(size) // max(1, prod(stride)))
    powers = []
    batch = LEAST
    while batch <= MOST and batch * sample <= LARGEST_TENSOR:
        powers.append(batch)
        batch *= 2
    return powers
