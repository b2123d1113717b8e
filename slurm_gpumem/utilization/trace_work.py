"""What one training step gives a GPU to do, from a trace: every operator with its real shapes."""

from __future__ import annotations

from typing import Dict, List, Set, Tuple

from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.trace_types import Kernel, Trace, evaluate
from slurm_gpumem.utilization.model import TextQuality
from slurm_gpumem.utilization.work import (
    FOREACH_TENSORS,
    NORM,
    OPTIMIZER,
    POINTS,
    POINTWISE,
    POOL,
    SERIAL,
    Host,
    Key,
    StepWork,
    blocks_of,
    kind_named,
    padded,
    weight_blocks,
)

_QUERIES = 128
"""Rows of queries that one block of an attention kernel handles."""
_BACK = 2 / 3
"""The part of an operation's cost for the CPU that falls in the backward pass."""
_SLOTS = {
    "gemm": 0,
    "conv": 0,
    "grouped": 0,
    "depthwise": 0,
    "attention": 1,
    "norm": 2,
    "pointwise": 3,
    "pool": 3,
    "serial": 3,
    "cast": 4,
}
"""Where operators count in `Host`."""
_SERIAL_THREADS = 1024
"""Threads of a block of such kernels."""
_SERIAL_OPERATIONS = 100_000
"""What a multiprocessor could compute while such a thread waits for one number: about 0.2 µs."""
_PRODUCTS = ("gemm", "conv", "grouped", "depthwise")


def trace_quality(trace: Trace) -> TextQuality:
    """A small real run guesses sizes; a trace on meta tensors knows them."""
    return TextQuality(guessed=trace.way != "meta" or not trace.scalable)


def work_of_trace(trace: Trace, job: TrainingJob, parameter_bytes: int) -> StepWork:
    """The work of one optimizer step of `job`, its micro-batches together."""
    batch = job.batch_size if trace.scalable else trace.job.batch
    # The trace has as many micro-batches as it was made with.
    again = job.grad_accumulation / max(1, trace.job.grad_accumulation)
    kernels: Dict[Key, int] = {}
    started = [0.0] * 5
    views = passes = 0.0
    tensors = 0
    # A gradient of a weight has the sizes of its forward product, rows and sum exchanged.
    ahead = {
        tuple(evaluate(size, batch) for size in kernel.sizes[:4])
        for kernel in trace.kernels
        if kernel.kind == "conv" and kernel.phase == "forward"
    }
    for kernel in trace.kernels:
        optimizer = kernel.phase == "optimizer"
        count = kernel.times if optimizer else max(1, round(kernel.times * again))
        if kernel.kind == "view":
            views += count
            continue
        sizes = [evaluate(size, batch) for size in kernel.sizes]
        moved = evaluate(kernel.bytes, batch)
        if kernel.kind == "foreach":
            tensors = max(tensors, sizes[0])
            passes += count
            launches = max(1, -(-sizes[0] // FOREACH_TENSORS))
            each = sizes[1] // launches
            _count(kernels, (OPTIMIZER, 0, moved // launches, max(1, each // (4 * POINTS))), count * launches)
            continue
        for key in _keys(kernel, sizes, moved, job, ahead):
            _count(kernels, key, count)
        if kernel.kind in _SLOTS:
            product = kernel.kind in _PRODUCTS
            share = _BACK / (2 if product else 1) if kernel.phase == "backward" else 1 - _BACK
            started[_SLOTS[kernel.kind]] += share * count
    products, attention, norms, points, casts = started
    host = Host(products, attention, norms, points, casts, float(tensors), passes, views)
    return StepWork(kernels, host, parameter_bytes)


def _keys(
    kernel: Kernel, sizes: List[int], moved: int, job: TrainingJob, ahead: Set[Tuple[int, ...]]
) -> List[Key]:
    half = kernel.dtype != "fp32"
    if kernel.kind == "conv" and kernel.phase == "backward":
        rows, columns, reach, times = sizes[:4]
        if (reach, columns, rows, times) in ahead:
            kind = kind_named("weight_half" if half else "weight_tf32")
            flops = padded(2 * rows * columns * reach, rows, columns, reach) * times
            channels = rows // max(1, sizes[4])
            return [(kind, flops, moved, weight_blocks(rows, columns, reach, channels, times))]
    if kernel.kind in ("gemm", "conv"):
        return [_product(kernel, sizes, moved, job)]
    if kernel.kind == "grouped":
        rows, columns, reach, groups = (max(1, size) for size in sizes[:4])
        kind = kind_named("grouped_half" if half else "grouped_fp32")
        return [(kind, 2 * rows * columns * reach * groups, moved, blocks_of(rows, columns, reach, groups))]
    if kernel.kind == "depthwise":
        rows, columns, reach, groups, taps = (max(1, size) for size in sizes[:5])
        results = rows * columns * groups
        flops = 2 * results * reach
        if kernel.phase == "backward" and rows == taps:
            return [(kind_named(f"taps_{kernel.dtype}"), flops, moved, results)]
        return [(kind_named(f"depthwise_{kernel.dtype}"), flops, moved, max(1, results // POINTS))]
    if kernel.kind == "attention":
        kind = kind_named("attention_half" if half else "attention_fp32")
        return [(kind, sizes[0], moved, max(1, sizes[1] // _QUERIES))]
    if kernel.kind == "rnn":
        flops, wide, rows, state = sizes
        kind = kind_named("rnn_half" if half else "rnn_fp32")
        return [(kind, flops, moved, 4 * blocks_of(max(1, rows), max(1, wide), max(1, state)))]
    if kernel.kind == "serial":
        threads, length = sizes
        blocks = -(-max(1, threads) // _SERIAL_THREADS)
        return [(SERIAL, _SERIAL_OPERATIONS * length * blocks, moved, blocks)]
    blocks = max(1, sizes[0] // POINTS)
    if kernel.kind != "norm":
        return [(POOL if kernel.kind == "pool" else POINTWISE, 0, moved, blocks)]
    if 0 < sizes[1] < blocks or (kernel.dtype == "bf16" and sizes[1]):
        # Statistics with one block for each mean.
        return [(NORM, 0, moved // 2, min(blocks, sizes[1])), (NORM, 0, moved, blocks)]
    return [(NORM, 0, moved + moved // 2, blocks)]


def _product(kernel: Kernel, sizes: List[int], moved: int, job: TrainingJob) -> Key:
    rows, columns, reach, times = (max(1, size) for size in sizes[:4])
    half = kernel.dtype != "fp32"
    # Convolutions take TF32 unless told otherwise, matrix products only when told.
    single = "conv_tf32" if kernel.kind == "conv" else "gemm_tf32" if job.precision == "tf32" else "gemm_fp32"
    kind = kind_named(f"{kernel.kind}_half" if half else single)
    flops = padded(2 * rows * columns * reach, rows, columns, reach) * times
    return kind, flops, moved, blocks_of(rows, columns, reach, times)


def _count(into: Dict[Key, int], key: Key, times: int) -> None:
    into[key] = into.get(key, 0) + times
