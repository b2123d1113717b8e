"""How much temporary memory cuDNN needs for a convolution.

cuDNN's fast kernels need channels last and aligned channels: for other layouts they copy input, output and
weight into their workspace; gradients of weights are summed in parts. cuDNN picks the kernel by its own
heuristics. Small decision trees, fitted on single convolutions that were measured on a GPU
(lab/fit/workspaces.py), predict which of these sums a call needs; the median of their answers counts.
Gradients of weights by Fourier transforms have trees of their own (fourier.py).
"""

from __future__ import annotations

from functools import lru_cache
from math import log2, prod
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from slurm_gpumem.data import data_file
from slurm_gpumem.estimators.workspaces import fourier
from slurm_gpumem.estimators.workspaces.number_files import COLUMNS, Tree, read_as, trees_of
from slurm_gpumem.summaries.trace_types import CALLS, Convolution, evaluate

FILE = "cudnn-workspaces.bin"
FORMAT = "gpumem-cudnn-workspaces/4"
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp64": 8}
ALIGNMENT_BYTES = 16
"""Channels are padded to this many bytes ..."""
GROUP_ALIGNMENT = 32
"""... and those of one group of several to this many channels."""

PRODUCTS_FROM, PRODUCTS_ALIGNED_FROM, PRODUCTS_HALF_TO = 256, 64, 256
"""Channels on the narrow side of a 1-D kernel of one tap: from 256 all measured gradients of its weight are a
product for each sample in single precision. From 64 on nearly all are, in single precision and up to 256 in
half, where both sides are multiples of 8."""
PRODUCTS_ROWS, PRODUCTS_LENGTH = 16, 32
"""Samples and positions from which that holds in half precision: jobs with 7 to 21 positions copy instead."""

BASES = ("nothing", "data", "output", "both", "data+weight", "output+weight", "all", "all+weight",
         "weight", "weight of each", "weight of each, at most both")  # fmt: skip
"""Sums of which a workspace is a multiple: copies of input and output, of the weight, a weight per sample."""
FEATURES = ("batch", "channels of a group", "outputs of a group", "groups", "depthwise", "dimensions",
            "positions", "output positions", "taps", "longest side of the kernel", "stride", "dilation",
            "transposed", "bytes of a number", "channels last", "channels modulo 8", "outputs modulo 8",
            "data", "output", "weight", "operations", "weight against data", "weights against data",
            "last size", "last output size", "products a number", "products a gradient",
            "data against output", "padding", "output rows", "fp16")  # fmt: skip


class Call(NamedTuple):
    """One convolution with its batch size, as requested from cuDNN."""

    convolution: Convolution
    rows: int

    @property
    def width(self) -> int:
        """Bytes of a number."""
        return BYTES[self.convolution.dtype]

    @property
    def data(self) -> int:
        """Bytes of the input."""
        return self.rows * self.convolution.channels * prod(self.convolution.size) * self.width

    @property
    def output(self) -> int:
        """Bytes of the output."""
        return self.rows * self.convolution.outputs * prod(self.convolution.out_size) * self.width

    @property
    def weight(self) -> int:
        """Bytes of the weight."""
        c = self.convolution
        return c.channels * c.outputs * prod(c.kernel) * self.width // c.groups


class Forest(NamedTuple):
    """What is known about one kind of call."""

    trees: Tuple[Tree, ...]
    beyond: Tree

    def answer(self, values: Sequence[float], bases: Sequence[float]) -> int:
        """Bytes: the median of the trees."""
        answers = sorted(tree.bytes(values, bases, self.beyond) for tree in self.trees)
        # `statistics` takes longer to import than all answers of an estimate.
        middle = len(answers) // 2
        return int(answers[middle] if len(answers) % 2 else (answers[middle - 1] + answers[middle]) / 2)


def workspace_bytes(convolution: Convolution, batch: int) -> int:
    """Bytes of the workspace at a batch size."""
    rows = evaluate(convolution.batch, batch)
    return _bytes(convolution.call, _of_any_call(convolution), rows)


def usual_bytes(convolution: Convolution, rows: int) -> Tuple[int, int, int]:
    """The workspaces of all three calls: forward, the input's gradient, the weight's gradient.

    For estimates from summaries, whose similar models were simulated without Fourier transforms.
    """
    asked = _of_any_call(convolution)
    forward, of_input, of_weight = (_usual(call, asked, rows) for call in CALLS)
    return forward, of_input, of_weight


@lru_cache(maxsize=4096)
def _of_any_call(convolution: Convolution) -> Convolution:
    """The same for all calls and batch sizes of a convolution: they share most of the work."""
    return convolution._replace(call=CALLS[0], batch=())


@lru_cache(maxsize=4096)
def _bytes(call: str, convolution: Convolution, rows: int) -> int:
    if convolution.dtype == "fp64" and not convolution.channels_last:
        return _of_doubles(call, convolution, rows)
    whole = fourier.weight_bytes(convolution, rows) if call == "weight" else 0
    asked = Call(convolution, rows)
    if whole and fourier.picked(_numbers(convolution, rows)[0], whole, asked.data + asked.output):
        return whole
    return _usual(call, convolution, rows)


def _of_doubles(call: str, c: Convolution, rows: int) -> int:
    """In double precision there are none, except for a product of each sample, as in `_sums_products`.

    So it was in 45 convolutions of one to three dimensions measured on an H200 with PyTorch 2.11, but for
    0.13 MiB in one gradient of an input.
    """
    one_tap = prod(c.kernel) == 1 and set(c.stride) == {1} and not any(c.padding) and c.groups == 1
    alone = prod(c.size) == 1
    return Call(c, rows).weight * rows if call == "weight" and one_tap and not alone else 0


@lru_cache(maxsize=4096)
def _usual(call: str, convolution: Convolution, rows: int) -> int:
    """What is needed without Fourier transforms."""
    if _sums_products(call, convolution, rows):
        return rows * convolution.channels * convolution.outputs * BYTES["fp32"]
    return _forests()[call].answer(*_numbers(convolution, rows))


def _sums_products(call: str, c: Convolution, rows: int) -> bool:
    """Whether a weight's gradient is one product of matrices for each sample, which are then summed.

    The products have single precision also where the gradient has half. All measured ones of these widths
    are so (of the narrower ones nine in ten); most of what the trees were fitted on has two dimensions.
    """
    if call != "weight" or c.transposed or (c.kernel, c.stride, c.padding, c.groups) != ((1,), (1,), (0,), 1):
        return False
    narrow = min(c.channels, c.outputs)
    aligned = c.channels % 8 == 0 and c.outputs % 8 == 0
    if c.dtype == "fp32":
        return narrow >= (PRODUCTS_ALIGNED_FROM if aligned else PRODUCTS_FROM)
    plenty = rows >= PRODUCTS_ROWS and c.size[0] >= PRODUCTS_LENGTH
    return aligned and plenty and PRODUCTS_ALIGNED_FROM <= narrow <= PRODUCTS_HALF_TO


@lru_cache(maxsize=1024)
def _numbers(convolution: Convolution, rows: int) -> Tuple[List[float], List[float]]:
    """What the trees of all calls look at."""
    call = Call(convolution, rows)
    return features(call), base_bytes(call)


def base_bytes(call: Call) -> List[float]:
    """The sums named in BASES, in bytes."""
    c = call.convolution
    channels, outputs = c.channels // c.groups, c.outputs // c.groups
    depthwise = _depthwise(c)
    step = 1 if depthwise else ALIGNMENT_BYTES // call.width if c.groups == 1 else GROUP_ALIGNMENT
    wider, taller = _aligned(channels, step) / channels, _aligned(outputs, step) / outputs
    taken, made, one = call.data, call.output, call.weight
    data, output, weight = taken * wider, made * taller, one * wider * taller
    each = call.rows * one
    return [
        0.0, data, output, data + output, data + weight, output + weight, data + output + weight,
        data + output + 2 * weight, one, each, min(each, taken + made),
    ]  # fmt: skip


def features(call: Call) -> List[float]:
    """The values named in FEATURES; sizes as logarithms."""
    c = call.convolution
    channels, outputs = c.channels // c.groups, c.outputs // c.groups
    data, output, weight, width = call.data, call.output, call.weight, call.width
    taps, places, both = prod(c.kernel), prod(c.out_size), max(data + output, 1)
    return [
        _log(call.rows), _log(channels), _log(outputs), _log(c.groups), float(_depthwise(c)),
        float(len(c.size)), _log(prod(c.size)), _log(places), _log(taps), float(max(c.kernel)),
        _log(prod(c.stride)), float(max(c.dilation)), float(c.transposed), float(width),
        float(c.channels_last), float(channels % 8), float(outputs % 8), _log(data), _log(output),
        _log(weight), _log(output // width * channels * taps), _log(weight / both),
        _log(call.rows * weight / both), float(c.size[-1]), float(c.out_size[-1]), _log(channels * taps),
        _log(outputs * taps), _log(data / max(output, 1)), float(max(c.padding)),
        _log(places * call.rows), float(c.dtype == "fp16"),
    ]  # fmt: skip


def _depthwise(convolution: Convolution) -> bool:
    return convolution.groups == convolution.channels and convolution.groups > 1


def _aligned(count: int, step: int) -> int:
    return -(-count // step) * step


def _log(value: float) -> float:
    return log2(max(value, 1e-9))


@lru_cache(maxsize=1)
def _forests() -> Mapping[str, Forest]:
    return read_as(data_file("models", FILE), FORMAT, from_columns)


def from_columns(header: Mapping[str, Any], columns: Sequence[Sequence[Any]]) -> Dict[str, Forest]:
    """The forest of each call; ValueError if the file has another format.

    A tree is three columns. Those of a call's forest come one after the other, the one that predicts how much
    is needed beyond a sum last; `calls` says how many there are.
    """
    if header["format"] != FORMAT or header["features"] != list(FEATURES) or header["bases"] != list(BASES):
        raise ValueError("format, features or bases are others")
    if len(columns) != len(COLUMNS) * sum(header["calls"].values()):
        raise ValueError("there are more or fewer trees than it says")
    trees = trees_of(columns)
    found = {}
    for call, count in header["calls"].items():
        found[call] = Forest(tuple(trees[: count - 1]), trees[count - 1])
        trees = trees[count:]
    return found
