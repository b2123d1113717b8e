"""Known convolutions at every usual batch size, for `probe --powers` and `probe --between`.

Two samples of a convolution teach trees how cuDNN decides; all powers of two tell what it does decide for the
batch sizes that people train with. Where it decides otherwise at one power of two than at the next, the one
halfway tells more.
"""

from __future__ import annotations

import gzip
import json
import random
from math import prod
from typing import Any, Dict, Iterable, Iterator, List, Set, Tuple

from lab.probe.cases import (
    LARGEST_TENSOR,
    RUNS,
    SHAPES,
    TIMM,
    Case,
    Shape,
    case_of,
    convolution_case,
)
from lab.probe.measured_calls import calls_of
from slurm_gpumem.estimators.workspaces.convolutions import Call, same_law
from slurm_gpumem.estimators.workspaces.measured_calls import halfway

LEAST, MOST = 4, 512
TYPES = ("bf16", "fp32", "fp16")
WORTHWHILE = 8 << 20
"""Bytes of a workspace from which it is worth to know where it begins."""


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


def between_cases(measured: Iterable[Dict[str, Any]]) -> List[Case]:
    """Batch sizes halfway between powers of two, where calls follow another law at one than at the next."""
    found: Dict[str, Dict[int, Dict[str, Tuple[Call, int]]]] = {}
    for row in measured:
        batch = row.get("batch", 0)
        if row.get("kind") == "conv" and "error" not in row and batch & (batch - 1) == 0:
            calls = {each.call.convolution.call: (each.call, each.bytes) for each in calls_of(row)}
            found.setdefault(json.dumps({**case_of(row), "batch": 0}), {})[batch] = calls
    return [
        {**json.loads(case), "batch": halfway(power)}
        for case, by_batch in found.items()
        for power in sorted(by_batch)
        if power >= LEAST and 2 * power in by_batch and _turns(by_batch[power], by_batch[2 * power])
    ]


def _turns(low: Dict[str, Tuple[Call, int]], high: Dict[str, Tuple[Call, int]]) -> bool:
    """Whether a call of size follows another law at the larger batch."""
    return any(
        max(low[name][1], high[name][1]) > WORTHWHILE
        and same_law(low[name], high[name], Call(low[name][0].convolution, halfway(low[name][0].rows)))
        is None
        for name in low.keys() & high.keys()
    )


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
