"""How much temporary memory cuDNN needs for a convolution.

cuDNN's fast kernels need channels last and aligned channels: for other layouts they copy input, output and
weight into their workspace; gradients of weights are summed in parts. cuDNN picks the kernel by its own
heuristics. Small decision trees, fitted on single convolutions that were measured on a GPU
(lab/fit/workspaces.py), predict which of these sums a call needs; the median of their answers counts.
Gradients of weights by Fourier transforms have trees of their own.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from array import array
from functools import lru_cache
from math import log2, prod
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple, TypeVar, Union

from slurm_gpumem.data import data_file
from slurm_gpumem.errors import ConfigError
from slurm_gpumem.estimators.workspaces.benchmark import MOST_NUMBERS, transformed
from slurm_gpumem.summaries.trace_types import CALLS, Convolution, Reduction, evaluate

# Which gradients of weights cuDNN computes by Fourier transforms without being asked to try algorithms.
#
# In single precision cuDNN's heuristics pick them for some narrow layers with many samples. The workspace is
# then exactly that of benchmark.py's rule, up to twenty times input and output. All that were measured have
# kernels of more than one tap, nearly all channels first. Small trees say how likely a call is one of them
# (lab/fit/fourier.py). The gradient of the input also has such cases, but trees did not find those of
# channels that they had not seen.

FOURIER_FILE = "cudnn-fourier.bin"
FOURIER_FORMAT = "gpumem-cudnn-fourier/1"
FROM = 0.4
"""Mean of the trees from which a call is taken for one: what was off by fewest bytes on calls left out."""
FOURIER_FEATURES = ("transforms against input and output", "transforms")
"""What the trees look at beside FEATURES: logarithms of bytes."""


def weight_bytes(convolution: Convolution, rows: int) -> int:
    """Bytes of the weight's gradient by Fourier transforms; 0 where cuDNN does not pick them by itself."""
    c = convolution
    if c.dtype != "fp32" or c.channels_last or c.transposed or prod(c.kernel) == 1:
        return 0
    found, numbers = transformed(c._replace(call="weight", batch=(0, 1)), rows)
    return found if numbers < MOST_NUMBERS else 0  # none with more was seen to be picked


def with_transforms(values: Sequence[float], transforms: int, both: int) -> Sequence[float]:
    """What the trees look at: FEATURES, and bytes of transforms, input and output."""
    return (*values, log2(transforms / max(both, 1)), log2(transforms))


def picked(values: Sequence[float], transforms: int, both: int) -> bool:
    """Whether a call is taken for one by Fourier transforms."""
    asked, trees = with_transforms(values, transforms, both), _trees()
    return sum(tree.thresholds[tree.leaf(asked)] for tree in trees) / len(trees) > FROM


@lru_cache(maxsize=1)
def _trees() -> Tuple[Tree, ...]:
    return read_as(data_file("models/fitted", FOURIER_FILE), FOURIER_FORMAT, fourier_from_columns)


def fourier_from_columns(header: Mapping[str, Any], columns: Sequence[Sequence[Any]]) -> Tuple[Tree, ...]:
    """The trees of a file, whose leaves are shares of such calls; ValueError if it has another format."""
    if (
        header["format"] != FOURIER_FORMAT
        or tuple(header["features"][-len(FOURIER_FEATURES) :]) != FOURIER_FEATURES
    ):
        raise ValueError("format or features are others")
    if not columns or len(columns) % len(COLUMNS):
        raise ValueError("its trees are not whole")
    return tuple(trees_of(columns))


# Files of many numbers that are read at every estimate: one line of JSON, then columns of numbers as bytes.
#
# Reading hundreds of thousands of numbers as text would take longer than an estimate. The line is a table
# with `columns`, a list of [type code of `array`, count], and `crc32` of the bytes that follow:
# little-endian, column after column.

T = TypeVar("T")


def read_columns(path: Union[str, os.PathLike[str]]) -> Tuple[Dict[str, Any], List[Sequence[Any]]]:
    """A file's header and columns; OSError or ValueError if it is not such a file."""
    with open(path, "rb") as file:
        data = file.read()
    begin = data.index(b"\n") + 1
    header, rest = json.loads(data[:begin]), memoryview(data)[begin:]
    if zlib.crc32(rest) != header["crc32"]:
        raise ValueError("it is damaged")
    columns: List[Sequence[Any]] = []
    at = 0
    for code, count in header["columns"]:
        column = array(code)
        end = at + column.itemsize * count
        column.frombytes(rest[at:end])
        columns.append(little_endian(column))
        at = end
    return header, columns


def read_as(path: str, sort: str, make: Callable[[Dict[str, Any], List[Sequence[Any]]], T]) -> T:
    """The result of `make` for a file of the package; ConfigError names one that is missing or damaged."""
    try:
        return make(*read_columns(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: cannot be read as {sort}: {error}; install slurm-gpumem again") from None


def little_endian(column: array[Any]) -> array[Any]:
    """The column with its bytes as a file has them, or the other way round; changed in place."""
    if sys.byteorder == "big":
        column.byteswap()
    return column


# -- Decision trees: three columns of numbers each, node by node

COLUMNS = ("b", "f", "H")
"""Type codes of a tree's columns in a file."""
BEYOND = 65535
"""Used instead of a leaf's bytes beyond its sum, which are fewer: a separate tree predicts them."""


class Tree(NamedTuple):
    """One decision tree; a node without a feature is a leaf."""

    features: Sequence[int]
    """Index of the feature that a node tests; -1 - base for a leaf."""
    thresholds: Sequence[float]
    """Values up to this go left; for a leaf the multiple of its base."""
    rights: Sequence[int]
    """The right child of a node (the left one is the next node); for a leaf the bytes beyond, or BEYOND."""

    def bytes(self, values: Sequence[float], bases: Sequence[float], beyond: Tree) -> float:
        """The leaf's answer for these values; `beyond` predicts partial sums over the batch."""
        node = self.leaf(values)
        more: float = self.rights[node]
        if more == BEYOND:
            more = beyond.thresholds[beyond.leaf(values)]
        return self.thresholds[node] * bases[-1 - self.features[node]] + more

    def leaf(self, values: Sequence[float]) -> int:
        """The leaf that these values lead to."""
        features, thresholds, rights = self.features, self.thresholds, self.rights
        node, feature = 0, features[0]
        while feature >= 0:
            node = node + 1 if values[feature] <= thresholds[node] else rights[node]
            feature = features[node]
        return node


def trees_of(columns: Sequence[Sequence[Any]]) -> List[Tree]:
    """The trees of a file's columns, which come one after the other."""
    return [Tree(*columns[at : at + len(COLUMNS)]) for at in range(0, len(columns), len(COLUMNS))]


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
    whole = weight_bytes(convolution, rows) if call == "weight" else 0
    asked = Call(convolution, rows)
    if whole and picked(_numbers(convolution, rows)[0], whole, asked.data + asked.output):
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
    return read_as(data_file("models/fitted", FILE), FORMAT, from_columns)


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


# The buffer in global memory through which thread blocks share the work of PyTorch's sums.
#
# The launch configuration is PyTorch's own (aten/src/ATen/native/cuda/Reduce.cuh), for sums, means and norms
# that do not run along adjacent numbers: threads are assigned along the outputs, blocks split the inputs.

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
