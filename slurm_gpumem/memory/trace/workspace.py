"""How much cuDNN takes for a moment for a convolution.

cuDNN's fast kernels want channels last: for other layouts it copies input, output and weight into its
workspace. Gradients of weights are summed in parts, each as large as the weight.
"""

from __future__ import annotations

from math import prod

from slurm_gpumem.model.trace_types import Convolution, evaluate

_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp64": 8}
_PARTS_LIMIT = 8 << 20
"""Bytes that the parts of a weight's gradient take at most, by what was measured."""
_MOST_PARTS = 14


def workspace_bytes(convolution: Convolution, batch: int) -> int:
    """Bytes of the workspace at a batch size."""
    rows = evaluate(convolution.batch, batch)
    size = _BYTES[convolution.dtype]
    data = rows * convolution.channels * prod(convolution.size) * size
    output = rows * convolution.outputs * prod(convolution.out_size) * size
    weight = (
        convolution.channels * convolution.outputs * prod(convolution.kernel) * size // convolution.groups
    )
    depthwise = convolution.groups == convolution.channels and convolution.groups > 1
    if depthwise:
        return 0
    parts = _parts(weight) if convolution.call == "weight" else 0
    if convolution.channels_last:
        return parts
    if prod(convolution.kernel) > 1:
        return data + output + weight + parts
    if prod(convolution.stride) > 1:
        return data + output + parts
    small = prod(convolution.size) <= 64
    if convolution.call == "weight":
        whole = data + output + parts
        return whole if small else min(rows * weight, whole)
    return data + output if small else 0


def _parts(weight: int) -> int:
    return weight * min(_MOST_PARTS, max(1, _PARTS_LIMIT // max(weight, 1)))
