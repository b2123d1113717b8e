"""How much cuDNN takes for a moment for a convolution."""

from __future__ import annotations

from math import prod

from slurm_gpumem.model.trace_types import Convolution, evaluate

_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp64": 8}


def workspace_bytes(convolution: Convolution, batch: int) -> int:
    """Bytes of the workspace at a batch size."""
    rows = evaluate(convolution.batch, batch)
    size = _BYTES[convolution.dtype]
    data = rows * convolution.channels * prod(convolution.size) * size
    output = rows * convolution.outputs * prod(convolution.out_size) * size
    weight = (
        convolution.channels * convolution.outputs * prod(convolution.kernel) * size // convolution.groups
    )
    if convolution.channels_last or prod(convolution.kernel) == 1 or convolution.groups > 1:
        return 0
    return data + output + weight
