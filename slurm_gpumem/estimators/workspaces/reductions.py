"""The buffer in global memory through which thread blocks share the work of PyTorch's sums.

The launch configuration is PyTorch's own (aten/src/ATen/native/cuda/Reduce.cuh), for sums, means and norms
that do not run along adjacent numbers: threads are assigned along the outputs, blocks split the inputs.
"""

from __future__ import annotations

from slurm_gpumem.summaries.trace_types import Reduction, evaluate

_MOST_THREADS = 512
_WARP = 32
_THREADS_PER_SM = 2048
_LEAST_VALUES, _MOST_VALUES = 16, 256


def reduction_bytes(reduction: Reduction, batch: int, sms: int) -> int:
    """Bytes of the buffer at a batch size; 0 if one block does it all."""
    inputs, outputs = evaluate(reduction.inputs, batch), evaluate(reduction.outputs, batch)
    vector = reduction.vector
    if not inputs or not outputs:
        return 0
    most = _MOST_THREADS // vector
    wide, high = _power(outputs // vector, most), _power(inputs, most)
    width = min(wide, _WARP)
    height = min(high, most // width)
    width = min(wide, most // height)
    values = inputs
    if values < min(height * 16, _MOST_VALUES):
        return 0
    values = -(-inputs // height)
    grid = -(-(outputs // vector) // width)
    target = sms * (_THREADS_PER_SM // (width * height))
    if values < _MOST_VALUES or grid > target:
        return 0
    blocks = max(min(-(-target // grid), -(-values // _LEAST_VALUES)), -(-values // _MOST_VALUES))
    return reduction.number * outputs * blocks * width * vector if blocks > 1 else 0


def _power(number: int, most: int) -> int:
    """The largest power of two that is not above a number, and not above `most`."""
    return most if number >= most else 1 << (max(number, 1).bit_length() - 1)
