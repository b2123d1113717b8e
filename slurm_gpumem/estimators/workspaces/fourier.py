"""Which gradients of weights cuDNN computes by Fourier transforms without being asked to try algorithms.

In single precision cuDNN's heuristics pick them for some narrow layers with many samples. The workspace is
then exactly that of benchmark.py's rule, up to twenty times input and output. All that were measured have
kernels of more than one tap, nearly all channels first. Small trees say how likely a call is one of them
(lab/fit/fourier.py). The gradient of the input also
has such cases, but trees did not find those of channels that they had not seen.
"""

from __future__ import annotations

from functools import lru_cache
from math import log2, prod
from typing import Any, Mapping, Sequence, Tuple

from slurm_gpumem.data import data_file
from slurm_gpumem.estimators.workspaces.benchmark import MOST_NUMBERS, transformed
from slurm_gpumem.estimators.workspaces.number_files import COLUMNS, Tree, read_as, trees_of
from slurm_gpumem.summaries.trace_types import Convolution

FILE = "cudnn-fourier.bin"
FORMAT = "gpumem-cudnn-fourier/1"
FROM = 0.4
"""Mean of the trees from which a call is taken for one: what was off by fewest bytes on calls left out."""
FEATURES = ("transforms against input and output", "transforms")
"""What the trees look at beside the features of convolutions.py: logarithms of bytes."""


def weight_bytes(convolution: Convolution, rows: int) -> int:
    """Bytes of the weight's gradient by Fourier transforms; 0 where cuDNN does not pick them by itself."""
    c = convolution
    if c.dtype != "fp32" or c.channels_last or c.transposed or prod(c.kernel) == 1:
        return 0
    found, numbers = transformed(c._replace(call="weight", batch=(0, 1)), rows)
    return found if numbers < MOST_NUMBERS else 0  # none with more was seen to be picked


def with_transforms(values: Sequence[float], transforms: int, both: int) -> Sequence[float]:
    """What the trees look at: the features of convolutions.py, and bytes of transforms, input and output."""
    return (*values, log2(transforms / max(both, 1)), log2(transforms))


def picked(values: Sequence[float], transforms: int, both: int) -> bool:
    """Whether a call is taken for one by Fourier transforms."""
    asked, trees = with_transforms(values, transforms, both), _trees()
    return sum(tree.thresholds[tree.leaf(asked)] for tree in trees) / len(trees) > FROM


@lru_cache(maxsize=1)
def _trees() -> Tuple[Tree, ...]:
    return read_as(data_file("models", FILE), FORMAT, from_columns)


def from_columns(header: Mapping[str, Any], columns: Sequence[Sequence[Any]]) -> Tuple[Tree, ...]:
    """The trees of a file, whose leaves are shares of such calls; ValueError if it has another format."""
    if header["format"] != FORMAT or tuple(header["features"][-len(FEATURES) :]) != FEATURES:
        raise ValueError("format or features are others")
    if not columns or len(columns) % len(COLUMNS):
        raise ValueError("its trees are not whole")
    return tuple(trees_of(columns))
