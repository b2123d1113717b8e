"""Temporary memory of kernels: cuDNN's convolutions, and sums that are split among blocks.

The measured rules are the same as for traces; here they are applied to what a summary shows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Tuple

from slurm_gpumem.estimators.workspaces.convolutions import usual_bytes
from slurm_gpumem.estimators.workspaces.reductions import reduction_bytes
from slurm_gpumem.summaries.trace_types import Convolution, Reduction
from slurm_gpumem.summaries.types import Shape

_SMS = 132
"""Multiprocessors of the measured GPU. Used for every GPU, so that a job's memory differs between GPUs by
their context alone, as memory lines assume."""


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
