"""From the step behind a memory estimate to how hard the job will drive its GPU."""

from __future__ import annotations

from math import exp, log
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.errors import ConfigError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.known.recognize import with_stored_trace
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob, Utilization
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
from slurm_gpumem.utilization.work import StepWork, step_work

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
                from slurm_gpumem.utilization.trace_work import trace_quality, work_of_trace

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
