"""Narrow convolutions over many samples, drawn at random: where cuDNN may compute by Fourier transforms.

What other plans have few of: few channels, large batches, kernels up to 9, in single precision and channels
first. `fit.fourier` fits on them, and leaves out those that are to check it.
"""

from __future__ import annotations

import random
from typing import Any, Dict, List

from lab.probe.cases import Case, convolution_case
from lab.probe.measured_calls import convolution_of
from slurm_gpumem.estimators.workspaces.convolutions import Call
from slurm_gpumem.estimators.workspaces.fourier import weight_bytes
from slurm_gpumem.units import MIB

COUNT = 6000
LARGEST_TENSOR = 512 * MIB
LEAST, MOST = 16 * MIB, 3072 * MIB
"""Bytes of the transforms: fewer do not matter, more would fill the GPU."""
_WIDTHS = (1, 2, 3, 4, 6, 8, 8, 10, 12, 16, 16, 16, 20, 24, 24, 28, 32, 32, 32, 36, 40, 48, 48, 56, 64, 64,
           64, 72, 80, 96, 96, 112, 120, 128, 128, 144, 160, 192, 256)  # fmt: skip
"""Channels that people choose."""
_SIDES = (7, 8, 10, 12, 14, 16, 20, 24, 28, 28, 32, 32, 32, 40, 48, 56, 64, 64, 96, 112, 128)
_LENGTHS = (16, 32, 50, 64, 100, 128, 200, 240)
_KERNELS = (3, 3, 3, 3, 3, 5, 5, 7, 7, 9, 4, 2)


def narrow_cases(seed: int) -> List[Case]:
    """Each shape at one or two batch sizes."""
    rng = random.Random(seed)
    found: Dict[str, Case] = {}
    while len(found) < COUNT:
        shape = _shape(rng)
        for _ in range(2):
            case = convolution_case(shape, "fp32", last=False, batch=_batch(rng))
            if _matters(case):
                found[str(case)] = case
    cases = list(found.values())
    rng.shuffle(cases)
    return cases


def _shape(rng: random.Random) -> List[Any]:
    kind = rng.random()
    kernel, padding = rng.choice(_KERNELS), -1
    channels = _width(rng)
    outputs = channels if rng.random() < 0.35 else _width(rng)
    dimensions, size = 2, rng.choice(_SIDES) if rng.random() < 0.7 else int(2 ** rng.uniform(2.6, 7.2))
    if kind < 0.06:
        dimensions, size = 1, rng.choice(_LENGTHS)
    elif kind < 0.14:  # the last layer of a head or a mask
        outputs = rng.randint(1, 6)
    elif kind < 0.24:  # the first layer of a network
        channels = rng.choice((1, 2, 3))
    if rng.random() < 0.2:
        padding = rng.choice((0, kernel // 2, 1))
    return [
        channels, outputs, [max(size, kernel)] * dimensions, [kernel] * dimensions, [1] * dimensions,
        [(kernel - 1) // 2 if padding < 0 else padding] * dimensions, [1] * dimensions, False,
        [0] * dimensions, 1,
    ]  # fmt: skip


def _width(rng: random.Random) -> int:
    return rng.choice(_WIDTHS) if rng.random() < 0.7 else int(2 ** rng.uniform(1, 8))


def _batch(rng: random.Random) -> int:
    """From 16 to 8192, more than half of them powers of two."""
    power = rng.uniform(4, 13)
    return int(2 ** (round(power) if rng.random() < 0.6 else power))


def _matters(case: Case) -> bool:
    convolution = convolution_of("weight", case)
    call = Call(convolution, case["batch"])
    fits = max(call.data, call.output) <= LARGEST_TENSOR
    return fits and LEAST <= weight_bytes(convolution, case["batch"]) <= MOST
