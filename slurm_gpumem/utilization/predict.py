"""From the step behind a memory estimate to how hard the job will drive its GPU."""

from __future__ import annotations

from math import exp, log
from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from slurm_gpumem.errors import ConfigError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.known.recognize import with_stored_trace
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob, Utilization
from slurm_gpumem.summaries.trace_types import Kernel, Trace, evaluate
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.utilization.model import (
    LEVELS,
    NAMES,
    TARGETS,
    SourceModel,
    TextQuality,
    UtilizationModel,
    features,
    in_words,
    logit,
    packaged,
)
from slurm_gpumem.utilization.roofline import Times, rates_of, step_times, with_host
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
    step_work,
    weight_blocks,
)

SUMMARY, TRACE = "summary", "trace"
_SLACK = 1e-9


class Prediction(NamedTuple):
    """What the model predicts, in its own terms."""

    values: Dict[str, float]
    """By TARGETS: shares from 0 to 1, seconds."""
    lows: Dict[str, float]
    highs: Dict[str, float]
    times: Times
    unusual: Tuple[str, ...]
    """Features outside the range of the measurements."""
    busy_activity: float
    """SM activity shifted so that a job near the edge counts as busy: a missed one costs more."""


def estimate_with_utilization(
    name: str, summary: ModelSummary, job: TrainingJob, gpu: Gpu, coverage: Optional[float] = None
) -> Estimate:
    """The named estimator's estimate, with the job's utilization."""
    return with_utilization(registry.run(name, summary, job, gpu, coverage), gpu, summary)


def with_utilization(estimate: Estimate, gpu: Gpu, summary: ModelSummary) -> Estimate:
    """The same estimate with its utilization; the step is rebuilt where the estimate has none of its own."""
    if estimate.job.gpus > 1:
        return estimate._replace(no_utilization="how long several GPUs wait for each other is not predicted")
    if estimate.estimator.startswith(registry.TRACE):
        summary = with_stored_trace(summary, estimate.job)
    trace = summary.trace
    try:
        if trace is not None and trace.kernels:
            model = packaged(TRACE)
            if TRACE in model.sources:
                work = work_of_trace(trace, estimate.job, summary.total_params * estimate.job.weight_bytes)
                return estimate._replace(utilization=predict(work, trace_quality(trace), gpu, model, TRACE))
        model = packaged(SUMMARY)
    except ConfigError as error:
        return estimate._replace(warnings=(*estimate.warnings, f"no utilization: {error}"))
    unknown = why_unknown(summary)
    if unknown:
        return estimate._replace(no_utilization=unknown)
    from slurm_gpumem.estimators.structural.estimator import rebuild  # a trace needs none of it

    step = rebuild(summary, estimate.job)
    quality = TextQuality(guessed=step.has_guesses)
    return estimate._replace(utilization=predict(step_work(step.tape, estimate.job), quality, gpu, model))


def why_unknown(summary: ModelSummary) -> str:
    """Why no utilization is predicted from this text; "" where it is.

    On such summaries predictions were off by 18 points of SM activity and more (docs/sharing.md).
    """
    trace = summary.trace
    if trace is not None and not any(phase.name == "backward" for phase in trace.phases):
        return "the trace has no training, and utilization was measured on training steps"
    if not summary.has_shapes:
        return "the summary has no shapes (torchinfo's has with an input size, gpumem summarize's)"
    unseen = registry.custom_forward(summary)
    return unseen.message if unseen is not None and unseen.is_much else ""


def predict(
    work: StepWork, quality: TextQuality, gpu: Gpu, model: UtilizationModel, source: str = SUMMARY
) -> Utilization:
    """The utilization of a step on a GPU."""
    if source not in model.sources:
        source = SUMMARY
    fitted = model.sources[source]
    found = predict_targets(work, quality, gpu, fitted, model.outside)
    warnings: List[str] = []
    if found.unusual:
        named = ", ".join(map(in_words, found.unusual[:3]))
        warnings.append(f"utilization: unlike the measured jobs in {named}")
    if not gpu.utilization_measured:
        how = (
            "scaled from an H200's by peak rates" if gpu.tflops else "as on an H200: its rates are not known"
        )
        warnings.append(f"utilization is unmeasured on {gpu.name}: {how}")
    percent = {name: 100.0 if name != "step_seconds" else 1.0 for name in TARGETS}
    return Utilization(
        sm_active=100 * found.values["sm_active"],
        sm_occupancy=100 * found.values["sm_occupancy"],
        dram_active=100 * found.values["dram_active"],
        step_seconds=found.values["step_seconds"],
        intervals={
            name: (percent[name] * found.lows[name], percent[name] * found.highs[name]) for name in TARGETS
        },
        coverage=model.coverage,
        launch_bound=found.times.cpu > found.times.gpu,
        source=source,
        measured=gpu.utilization_measured,
        warnings=tuple(warnings),
    )


def predict_targets(
    work: StepWork, quality: TextQuality, gpu: Gpu, fitted: SourceModel, outside: float
) -> Prediction:
    """The roofline's answer, moved by the learned part, with its intervals."""
    found = centers(work, quality, gpu, fitted)
    wider = outside if found.unusual else 1.0
    level = level_of(found.by_target["sm_active"])
    middle: Dict[str, float] = {}
    low: Dict[str, float] = {}
    high: Dict[str, float] = {}
    for name, center in found.by_target.items():
        back = exp if name == "step_seconds" else _share
        target = fitted.targets[name]
        below, above = (target.guessed_bands if quality.guessed else target.bands)[level]
        least, most = found.spans[name]
        middle[name] = back(center)
        low[name] = back(min(center, least + wider * below))
        high[name] = back(max(center, most + wider * above))
    # Warps live on active multiprocessors only.
    middle["sm_occupancy"] = min(middle["sm_occupancy"], middle["sm_active"])
    low["sm_occupancy"] = min(low["sm_occupancy"], middle["sm_occupancy"])
    busy_activity = _share(logit(middle["sm_active"]) + fitted.busy_shift)
    return Prediction(middle, low, high, found.times, found.unusual, busy_activity)


class Centers(NamedTuple):
    """Answers by TARGETS in the scale of the learned part: log-odds, the step as a logarithm."""

    by_target: Dict[str, float]
    spans: Dict[str, Tuple[float, float]]
    """The least and the largest of the answers on a fast, a usual and a slow machine of this kind."""
    times: Times
    unusual: Tuple[str, ...]


def centers(work: StepWork, quality: TextQuality, gpu: Gpu, fitted: SourceModel) -> Centers:
    """The answers without their intervals."""
    times = step_times(work, rates_of(gpu), fitted.coefficients)
    values = features(work, times, quality)
    usual = _answers(times, values, fitted)
    others = []
    for factor in fitted.host:
        moved = with_host(times, factor, fitted.coefficients)
        others.append(_answers(moved, features(work, moved, quality), fitted))
    spans = {}
    for name, answer in usual.items():
        ends = (answer, *(other[name] for other in others))
        spans[name] = (min(ends), max(ends))
    return Centers(usual, spans, times, beyond(values, fitted.ranges))


def _answers(times: Times, values: Sequence[float], fitted: SourceModel) -> Dict[str, float]:
    """What the roofline says, moved by the learned part."""
    scaled = fitted.scaled(values)
    return {name: plain + fitted.targets[name].moved(scaled) for name, plain in plain_answers(times).items()}


def level_of(active: float) -> int:
    """The level (LEVELS) of an SM activity in log-odds."""
    share = _share(active)
    return sum(share >= edge for edge in LEVELS)


def plain_answers(times: Times) -> Dict[str, float]:
    """What the roofline says by TARGETS, in the scale that the learned part adds to."""
    return {
        "sm_active": logit(times.busy / times.step),
        "sm_occupancy": logit(times.warps / times.step),
        "dram_active": logit(times.traffic / times.step),
        "step_seconds": log(times.step),
    }


def beyond(values: Sequence[float], ranges: Sequence[Tuple[float, float]]) -> Tuple[str, ...]:
    """Names of the features that no measured job had so."""
    return tuple(
        name
        for name, value, (low, high) in zip(NAMES, values, ranges)
        if not low - _SLACK <= value <= high + _SLACK
    )


def _share(log_odds: float) -> float:
    return 1 / (1 + exp(-log_odds))


# What one training step gives a GPU to do, from a trace: every operator with its real shapes.

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
