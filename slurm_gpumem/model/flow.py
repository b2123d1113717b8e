"""Work out a layer's input where the table does not show it."""

from __future__ import annotations

import re
from math import prod
from typing import Dict, List, Optional, Sequence

from slurm_gpumem.model.rows import Row
from slurm_gpumem.model.types import Shape

# Layers that never change a tensor's shape.
_SAME_SHAPE = re.compile(
    r"Norm|ReLU|[EGS]ELU|CELU|SiLU|Sigmoid|[Ss]wish|Mish|Tanh|[Ss]oftmax|Softplus|Drop|Identity|Activation"
    r"|LayerScale"
)
# How many distinct earlier outputs a shortcut may reach back.
_REACH = 8
# Numbers of weights per channel pair in usual kernels: 3x3, 1x1, 7x7, 5x5, 2x2, 4x4 ... and 1-d, 3-d ones.
_TAPS = (9, 1, 49, 25, 4, 16, 3, 27, 5, 7)


def derive_inputs(rows: Sequence[Row], model_inputs: Sequence[Shape]) -> None:
    """Fill empty `inputs` of leaves and mark them as derived.

    A layer mostly takes what the layer before it made. Where its parameters contradict that (the
    convolution of a shortcut), it takes the latest earlier output that they allow.
    """
    recent: Dict[Shape, None] = dict.fromkeys(model_inputs[:1])
    same_shape: Dict[str, bool] = {}
    for row in rows:
        if not row.leaf or not row.outputs or row.unknown:
            continue
        output = row.outputs[0]
        if not row.inputs:
            if row.kind not in same_shape:
                same_shape[row.kind] = _SAME_SHAPE.search(row.kind) is not None
            shape = output if same_shape[row.kind] else _choose(row, output, recent)
            if shape is not None:
                row.inputs = (shape,)
                row.derived = (*row.derived, "inputs")
        recent.pop(output, None)
        recent[output] = None
        if len(recent) > _REACH:
            del recent[next(iter(recent))]


def _choose(row: Row, output: Shape, recent: Dict[Shape, None]) -> Optional[Shape]:
    if "Embedding" in row.kind:
        return output[:-1] or None
    latest_first = list(reversed(recent))
    if row.params and not row.hidden:
        if row.kind.endswith("Linear") or row.kind in ("Conv1D", "Dense"):
            return _linear_input(row, output, latest_first)
        if "Conv" in row.kind and len(output) > 2 and output[1] > 0:
            return _conv_input(row, output, latest_first)
    return latest_first[0] if latest_first else None


def _linear_input(row: Row, output: Shape, latest_first: List[Shape]) -> Optional[Shape]:
    if output[-1] < 1 or row.params < output[-1]:
        return None
    without_bias = row.params // output[-1]
    for shape in latest_first:
        if without_bias - shape[-1] in (0, 1):
            return (*output[:-1], shape[-1])
    return (*output[:-1], max(1, without_bias - 1))


def _conv_input(row: Row, output: Shape, latest_first: List[Shape]) -> Optional[Shape]:
    """Find the input whose channels the weights need; prefer an ungrouped convolution."""
    per_output = row.params // output[1]
    taps = (prod(row.kernel),) if row.kernel else _TAPS
    shapes = [shape for shape in latest_first if len(shape) == len(output)]
    needed = [
        count // tap for tap in taps if tap > 0 for count in (per_output, per_output - 1) if not count % tap
    ]
    for shape in shapes:
        if shape[1] in needed:
            return shape
    for shape in shapes[:1]:
        if any(channels > 0 and shape[1] % channels == 0 for channels in needed):
            return shape
    if needed and needed[0] > 0 and shapes:
        # No output has that many channels: a concatenation, at the resolution of the latest.
        return (shapes[0][0], needed[0], *shapes[0][2:])
    return shapes[0] if shapes else None
