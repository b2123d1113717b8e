"""Work out a layer's input where the table does not show it."""

from __future__ import annotations

import re
from itertools import combinations_with_replacement
from math import prod
from typing import Dict, List, Optional, Sequence, Tuple

from slurm_gpumem.summaries.parsers.rows import Row
from slurm_gpumem.summaries.types import Shape

# Layers that never change a tensor's shape.
_SAME_SHAPE = re.compile(
    r"Norm|ReLU|[EGS]ELU|CELU|SiLU|Sigmoid|[Ss]wish|Mish|Tanh|[Ss]oftmax|Softplus|Drop|Identity|Activation"
    r"|LayerScale|GRN$"
)
# Not the names of models that all their classes begin with (ConvNext, ConvBert, ConViT).
_CONVOLUTION = re.compile(r"Conv(?!N[eE]|[Bb]ert|i[tT])")
# How many distinct earlier outputs a shortcut may reach back.
_REACH = 8
_INPUTS = ("inputs",)
# Numbers of weights per channel pair in usual kernels: 3x3, 1x1, 7x7, 5x5, 2x2, 4x4 ... and 1-d, 3-d ones.
_TAPS = (9, 1, 49, 25, 4, 16, 3, 27, 5, 7)
_TAPS_WIDENING = (16, 4, 9, 1, 36, 25, 49)
"""Of transposed convolutions that double an image's sides."""
_LONGEST = 128
_LONGER = 4
_TAPS_3D = (27, 1, 8, 9, 3, 64, 125, 49, 147, 343)
"""Of volumes and films, some of which are convolved in space or in time alone."""


def derive_inputs(rows: Sequence[Row], model_inputs: Sequence[Shape]) -> None:
    """Fill empty `inputs` of leaves and mark them as derived.

    A layer mostly takes what the layer before it made. Where its parameters contradict that (the
    convolution of a shortcut), it takes the latest earlier output that they allow.
    """
    # The latest outputs, newest last; the table repeats few shapes often.
    recent: Dict[Shape, None] = dict.fromkeys(model_inputs[:1])
    older: List[Shape] = []
    ways: Dict[str, str] = {}
    for row in rows:
        if not row.leaf or not row.outputs:
            continue
        output = row.outputs[0]
        if not row.inputs:
            way = ways.get(row.kind)
            if way is None:
                way = ways[row.kind] = _way(row.kind)
            shape = output if way == "same" else _choose(row, way, output, recent, older)
            if shape is not None:
                row.inputs = (shape,)
                row.derived = (*row.derived, "inputs") if row.derived else _INPUTS
        if output in recent:
            del recent[output]
        elif len(recent) == _REACH:
            older.insert(0, next(iter(recent)))
            del recent[older[0]]
        recent[output] = None


def _way(kind: str) -> str:
    """Say how a class's input follows from its output."""
    if _SAME_SHAPE.search(kind):
        return "same"
    if "Embedding" in kind:
        return "indices"
    if kind.endswith("Linear") or kind in ("Conv1D", "Dense"):
        return "linear"
    return "convolution" if _CONVOLUTION.search(kind) else "before"


def derive_outputs(rows: Sequence[Row]) -> None:
    """Fill empty `outputs` of leaves in a table that shows inputs, and mark them as derived.

    A layer mostly makes what the layer after it takes.
    """
    after: Tuple[Shape, ...] = ()
    for row in reversed(rows):
        if not row.leaf or not row.inputs:
            continue
        if not row.outputs:
            shapes = row.inputs[:1] if _SAME_SHAPE.search(row.kind) else after
            if shapes:
                row.outputs = shapes
                row.derived = (*row.derived, "outputs")
        after = row.inputs[:1]


def _choose(
    row: Row, way: str, output: Shape, recent: Dict[Shape, None], older: Sequence[Shape]
) -> Optional[Shape]:
    if way == "indices":
        return output[:-1] or None
    if row.params and not row.hidden:
        if way == "linear":
            return _linear_input(row, output, recent)
        if way == "convolution" and len(output) > 2 and output[1] > 0:
            return _conv_input(row, output, recent, older)
    return next(reversed(recent), None)


def _linear_input(row: Row, output: Shape, recent: Dict[Shape, None]) -> Optional[Shape]:
    if output[-1] < 1 or row.params < output[-1]:
        return None
    without_bias = row.params // output[-1]
    for shape in reversed(recent):
        if without_bias - shape[-1] in (0, 1):
            return (*output[:-1], shape[-1])
    return (*output[:-1], max(1, without_bias - 1))


def _conv_input(
    row: Row, output: Shape, recent: Dict[Shape, None], older: Sequence[Shape]
) -> Optional[Shape]:
    """Find the input whose channels the weights need; prefer an ungrouped or a depthwise convolution."""
    per_output = row.params // output[1]
    widens = "Transpose" in row.kind
    taps = (prod(row.kernel),) if row.kernel else _usual_taps(output, widens)
    if widens and len(output) == 4:
        widened = _widened(row.params, taps, output, recent)
        if widened is not None:
            return widened
    latest: Optional[Shape] = None
    for shape in reversed(recent):
        if len(shape) != len(output) or shape[1] < 1 or not (widens or shape[2] >= output[2]):
            continue
        if latest is None:
            latest = shape
            depthwise = shape[1] == output[1] and (per_output in taps or per_output - 1 in taps)
            if depthwise and per_output > 2:
                return shape
        weights, rest = divmod(per_output, shape[1])
        # A bias adds one to each output's weights.
        if rest > 1 or weights not in taps:
            continue
        if weights == 1 and shape[2] > 2 * output[2] > 0:
            # Something that is no layer has pooled it: the gate of a squeeze-and-excitation.
            return (*shape[:2], *output[2:])
        return shape
    if latest is None:
        return None
    for shape in older if widens and len(output) == 5 else ():
        # A decoder of volumes widens what an encoder made long before, never a larger one than its result.
        weights, rest = divmod(per_output, max(1, shape[1])) if len(shape) == len(output) else (0, 2)
        if rest <= 1 and weights in taps and shape[2] < output[2]:
            return shape
    needed = [
        count // tap for tap in taps if tap > 0 for count in (per_output, per_output - 1) if not count % tap
    ]
    if not needed or needed[0] < 1 or any(channels > 0 and latest[1] % channels == 0 for channels in needed):
        return latest
    # No output has that many channels: a concatenation, at the resolution of the latest.
    return (latest[0], needed[0], *latest[2:])


def longest_kernel(output: Shape) -> int:
    """Kernels over time have any length up to this: a sequence is much longer than they are; 0 for images."""
    return min(_LONGEST, output[2] // _LONGER) if len(output) == 3 else 0


def _usual_taps(output: Shape, widens: bool) -> Tuple[int, ...]:
    if len(output) == 5:
        return _TAPS_3D
    if len(output) == 3:
        return (*_TAPS, *range(2, longest_kernel(output) + 1))
    return _TAPS_WIDENING if widens else _TAPS


def _widened(params: int, taps: Sequence[int], output: Shape, recent: Dict[Shape, None]) -> Optional[Shape]:
    """What a transposed convolution makes larger: the latest smaller image, or several of its size."""
    smaller = [shape for shape in reversed(recent) if len(shape) == 4 and 0 < shape[2] < output[2]]
    there = [shape[1] for shape in smaller if shape[2:] == smaller[0][2:] and shape[1] > 0]
    per_output = params // output[1]
    needed = [
        count // tap for tap in taps for count in (per_output, per_output - 1) if count and not count % tap
    ]
    if there and there[0] == output[1] and 1 in needed:
        return smaller[0]  # each channel by itself
    sums = (sum(part) for count in (1, 2, 3, 4) for part in combinations_with_replacement(there, count))
    channels = next((one for one in sums if one in needed), needed[0] if needed else 0)
    return (smaller[0][0], channels, *smaller[0][2:]) if there and channels else None
