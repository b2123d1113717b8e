"""What the simple estimators share: counts at another batch size, an estimate without a bound."""

from __future__ import annotations

from math import prod
from typing import Iterable, Mapping, Optional, Tuple

from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.formats.comment import PART_NAMES
from slurm_gpumem.summaries.types import UNKNOWN_BATCH, Layer, ModelSummary, Shape
from slurm_gpumem.units import MIB


def activation_elements(layers: Iterable[Layer], summary_batch: Optional[int], batch_size: int) -> int:
    """Numbers in the outputs of `layers`, rescaled from the summary's batch to `batch_size`."""
    return sum(elements(shape, summary_batch, batch_size) for layer in layers for shape in layer.outputs)


def elements(shape: Shape, summary_batch: Optional[int], batch_size: int) -> int:
    """Numbers in one tensor of a summary, at `batch_size`."""
    if UNKNOWN_BATCH in shape:
        return prod(batch_size if size == UNKNOWN_BATCH else size for size in shape)
    if not summary_batch or not shape:
        return prod(shape)
    # (1, seq, dim) beside a batch of 8 is a tensor without a batch: positions, masks.
    if summary_batch > 1 and not any(size % summary_batch == 0 for size in shape):
        return prod(shape)
    return prod(shape) * batch_size // summary_batch


def leaves(summary: ModelSummary) -> Iterable[Layer]:
    """The layers that compute something themselves."""
    return (layer for layer in summary.layers if layer.leaf)


def mib(size: float) -> int:
    """Bytes as whole MiB."""
    return round(size / MIB)


def unbounded(
    estimator: str, parts: Mapping[str, int], job: TrainingJob, gpu: Gpu, assumptions: Tuple[str, ...] = ()
) -> Estimate:
    """An estimate of an estimator that knows no bound: its request and its floor are its peak."""
    peak = sum(parts.values())
    return Estimate(
        peak_mib=peak,
        request_mib=peak,
        floor_mib=peak,
        parts={name: parts.get(name, 0) for name in PART_NAMES},
        estimator=estimator,
        gpu=gpu.name,
        job=job,
        assumptions=assumptions,
    )
