"""An estimate as text for people: one line, the explained table, estimators side by side."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import Any, Dict, List, Optional, Sequence, Tuple

from slurm_gpumem.estimators.assumptions import assumptions
from slurm_gpumem.estimators.environment import HELD_ELSEWHERE, measured_where
from slurm_gpumem.estimators.registry import by_trace
from slurm_gpumem.estimators.training_job import PRECISION_TITLES, describe_estimated
from slurm_gpumem.estimators.types import Estimate, Gpu, Utilization
from slurm_gpumem.estimators.whatif import Alternatives
from slurm_gpumem.report.doubt import doubt_json, doubt_lines
from slurm_gpumem.submission.activity import Activity
from slurm_gpumem.submission.script_remarks import PREALLOCATION
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.terminal.bars import parts_lines, speaks_unicode
from slurm_gpumem.text import count
from slurm_gpumem.units import ceil_div, exact_mib, format_at_least, format_mib

SCHEMA = "gpumem-estimate/1"
WIDTH = 96
_MARGIN = " " * len("alone on the GPU: ")


def result_line(summary: ModelSummary, estimate: Estimate, shard_mib: int) -> str:
    """The answer in one line, and for which job it is one."""
    shards = _share(estimate, shard_mib)
    arrow = "→" if speaks_unicode() else "->"
    return (
        f"{summary.name or 'model'}, {describe_estimated(summary, estimate)}, {estimate.gpu} {arrow} "
        f"peak {format_mib(estimate.peak_mib)}, request {format_at_least(estimate.request_mib)} "
        f"{shards}"
    )


def _share(estimate: Estimate, shard_mib: int) -> str:
    """What the request is of a GPU: shards of one, or nothing to be asked for of several."""
    if estimate.job.gpus > 1:
        return "of each GPU"
    return f"= {count(ceil_div(estimate.request_mib, shard_mib), 'shard')}"


def explain_lines(
    summary: ModelSummary, estimate: Estimate, gpu: Gpu, other: Alternatives, shard_mib: int
) -> List[str]:
    """Where every megabyte goes, what was assumed, what would change it."""
    unicode = speaks_unicode()
    lines = [f"{describe_model(summary)}, {describe_estimated(summary, estimate)}, {estimate.gpu}"]
    lines += parts_lines(estimate.parts, unicode=unicode)
    width = max(len(name) for name in estimate.parts)
    share = estimate.coverage
    held = (
        "" if share is None else f" (meant to hold for {share * 100:.3g} % of jobs{_measured(estimate, gpu)})"
    )
    lines.append(
        f"  {'peak':<{width}} {exact_mib(estimate.peak_mib):>13}  {'→' if unicode else '->'} "
        f"request {exact_mib(estimate.request_mib)} {_share(estimate, shard_mib)}{held}"
    )
    lines += doubt_lines(estimate, gpu, other, shard_mib)
    lines += _utilization_lines(estimate)
    lines += _wrapped("assumed: ", assumptions(summary, estimate.job, gpu, estimate))
    lines += _wrapped("", _alternatives(other))
    return lines


def _measured(estimate: Estimate, gpu: Gpu) -> str:
    """What is to be said of a coverage that was measured on another GPU."""
    if gpu.measured and gpu.workspaces_measured:
        return ""
    # Texts were held against the same runs; a trace without convolutions carries over.
    doubtful = not by_trace(estimate) or any(
        line.startswith("cuDNN workspaces on") for line in estimate.assumptions
    )
    if doubtful and not gpu.workspaces_measured and (estimate.coverage or 0) > HELD_ELSEWHERE:
        return f" on an H200, perhaps {HELD_ELSEWHERE * 100:.0f} % here"
    return "" if gpu.measured else ", measured on other GPUs"


def describe_model(summary: ModelSummary) -> str:
    """The model in a few words: "resnet50 (torchsummary, 161 layers, 25.6 M parameters)"."""
    layers = sum(layer.leaf for layer in summary.layers)
    name = summary.name or "model"
    trained = summary.trainable_params
    part = f", {_millions(trained)} trained" if 0 < trained < summary.total_params else ""
    total = _millions(summary.total_params)
    return f"{name} ({summary.format}, {count(layers, 'layer')}, {total} parameters{part})"


def comparison_lines(estimates: Sequence[Estimate], shard_mib: int) -> List[str]:
    """Every estimator's answer, one line each, the default first."""
    width = max(len(e.estimator) for e in estimates)
    lines = [f"{'estimator':<{width}}       peak    request  shards"]
    for e in estimates:
        shards = ceil_div(e.request_mib, shard_mib)
        peak, request = format_mib(e.peak_mib), format_at_least(e.request_mib)
        lines.append(f"{e.estimator:<{width}} {peak:>10} {request:>10} {shards:>7}")
    return lines


def fit_line(estimate: Estimate, gpu: Gpu) -> List[str]:
    """A line for the job that does not fit the GPU, or may not; nothing otherwise."""
    if estimate.sure_mib <= gpu.usable_mib or (estimate.wanted_mib and estimate.peak_mib <= gpu.usable_mib):
        # What only doubt makes too large is among the warnings.
        return []
    total = format_mib(gpu.memory_mib)
    usable = f", of which jobs can use {format_mib(gpu.usable_mib)}" if gpu.reserve_mib else ""
    if estimate.peak_mib <= gpu.usable_mib:
        return [f"may not fit: the upper bound is more than one {gpu.name} has ({total}{usable})"]
    return [f"does not fit: one {gpu.name} has {total}{usable}"]


def activity_line(activity: Optional[Activity]) -> List[str]:
    """What an accepted slowdown makes of the job's activity, where no partition is known yet."""
    if activity is None:
        return []
    return [
        f"within a slowdown of {activity.limit:g} its activity takes {activity.share * 100:.0f} % of the "
        "GPU; the larger of it and memory decides"
    ]


def utilization_json(utilization: Optional[Utilization]) -> Optional[Dict[str, Any]]:
    """A prediction for --json."""
    if utilization is None:
        return None
    return {
        "sm_active": round(utilization.sm_active, 1),
        "sm_occupancy": round(utilization.sm_occupancy, 1),
        "dram_active": round(utilization.dram_active, 1),
        "step_seconds": float(f"{utilization.step_seconds:.4g}"),
        "intervals": {
            name: [float(f"{low:.4g}"), float(f"{high:.4g}")]
            for name, (low, high) in utilization.intervals.items()
        },
        "coverage": utilization.coverage,
        "known": utilization.is_known,
        "launch_bound": utilization.launch_bound,
        "source": utilization.source,
        "measured": utilization.measured,
        "warnings": list(utilization.warnings),
    }


def _utilization_lines(estimate: Estimate) -> List[str]:
    """How hard the job will drive the GPU."""
    utilization = estimate.utilization
    if utilization is None:
        why = estimate.no_utilization
        return _folded(f"alone on the GPU: SM activity unknown: {why}") if why else []
    low, high = utilization.intervals["sm_active"]
    shortest, longest = utilization.intervals["step_seconds"]
    bound = "the CPU's launches" if utilization.launch_bound else "the GPU"
    if utilization.is_known:
        active = (
            f"SM activity {utilization.sm_active:.0f} % ({low:.0f} to {high:.0f}), "
            f"occupancy {utilization.sm_occupancy:.0f} %, memory {utilization.dram_active:.0f} % busy"
        )
    else:
        active = f"SM activity unknown ({low:.0f} to {high:.0f} %); its share is for any of that"
    return [
        f"alone on the GPU: {active}",
        f"{_MARGIN}step {_time(utilization.step_seconds)} ({_time(shortest)} to {_time(longest)}), "
        f"bound by {bound}",
        *(line for warning in utilization.warnings for line in _folded(_MARGIN + warning)),
    ]


def _folded(line: str) -> List[str]:
    return textwrap.wrap(line, WIDTH, initial_indent="", subsequent_indent=_MARGIN, drop_whitespace=True)


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def warnings_of(summary: ModelSummary, estimate: Estimate) -> Tuple[str, ...]:
    """What the reader and the estimator warn of, each once, in order."""
    # What a text leaves out does not matter where its model's own trace answers.
    by_text = summary.warnings if summary.trace is not None or not by_trace(estimate) else ()
    taken = (PREALLOCATION,) if summary.shows.preallocates else ()
    return tuple(dict.fromkeys((*by_text, *estimate.warnings, *taken)))


def estimate_json(
    summary: ModelSummary, gpu: Gpu, estimates: List[Estimate], other: Alternatives, shard_mib: int
) -> Dict[str, Any]:
    """The answer for programs; of several estimators the first is the one chosen."""
    chosen = estimates[0]
    result: Dict[str, Any] = {
        "schema": SCHEMA,
        **_figures(chosen, shard_mib),
        "gpu": chosen.gpu,
        "gpu_memory_mib": gpu.memory_mib,
        "gpu_usable_mib": gpu.usable_mib,
        "fits": chosen.peak_mib <= gpu.usable_mib,
        "surely_fits": chosen.sure_mib <= gpu.usable_mib,
        "job": asdict(chosen.job),
        "model": {
            "name": summary.name,
            "format": summary.format,
            "layers": sum(layer.leaf for layer in summary.layers),
            "params": summary.total_params,
        },
        "coverage": chosen.coverage,
        "measured": measured_where(gpu, chosen),
        **doubt_json(chosen, gpu),
        "utilization": utilization_json(chosen.utilization),
        "no_utilization": chosen.no_utilization or None,
        "warnings": list(warnings_of(summary, chosen)),
        "assumptions": list(assumptions(summary, chosen.job, gpu, chosen)),
    }
    if len(estimates) > 1:
        result["estimators"] = [_figures(estimate, shard_mib) for estimate in estimates]
    if other != Alternatives():
        result["alternatives"] = _alternatives_json(other, shard_mib)
    return result


def _figures(estimate: Estimate, shard_mib: int) -> Dict[str, Any]:
    return {
        "estimator": estimate.estimator,
        "peak_mib": estimate.peak_mib,
        "request_mib": estimate.request_mib,
        "floor_mib": estimate.floor_mib,
        "shards": ceil_div(estimate.request_mib, shard_mib),
        "parts": dict(estimate.parts),
    }


def _alternatives_json(other: Alternatives, shard_mib: int) -> Dict[str, Any]:
    result: Dict[str, Any] = {}
    named = {"half_batch": other.half_batch, "amp": other.amp, "checkpointing": other.checkpointing}
    for name, estimate in named.items():
        if estimate is not None:
            result[name] = {
                "batch_size": estimate.job.batch_size,
                "precision": estimate.job.precision,
                "peak_mib": estimate.peak_mib,
                "request_mib": estimate.request_mib,
                "shards": ceil_div(estimate.request_mib, shard_mib),
            }
    if other.fewer_shards is not None:
        result["fewer_shards"] = {"shards": other.fewer_shards, "batch_size": other.batch_for_fewer}
    return result


def _alternatives(other: Alternatives) -> List[str]:
    said: List[str] = []
    if other.half_batch is not None:
        said.append(f"half the batch needs {format_mib(other.half_batch.peak_mib)}")
    if other.amp is not None:
        title = PRECISION_TITLES[other.amp.job.precision]
        said.append(f"{title} needs {format_mib(other.amp.peak_mib)}")
    if other.checkpointing is not None:
        said.append(f"checkpointing needs {format_mib(other.checkpointing.peak_mib)}")
    if other.fewer_shards is not None:
        said.append(f"{other.batch_for_fewer} is the largest batch for {count(other.fewer_shards, 'shard')}")
    return said


def _wrapped(label: str, phrases: Sequence[str]) -> List[str]:
    """Phrases joined by semicolons, broken between phrases where the line would grow too long."""
    lines: List[str] = []
    line = label
    for number, phrase in enumerate(phrases):
        piece = phrase + (";" if number < len(phrases) - 1 else "")
        if line.strip() and line != label and len(line) + 1 + len(piece) > WIDTH:
            lines.append(line)
            line = " " * len(label) + piece
        else:
            line += piece if line == label else f" {piece}"
    return [*lines, line] if phrases else []


def _millions(params: int) -> str:
    if params >= 10**9:
        return f"{params / 1e9:.2f} G"
    return f"{params / 1e6:.1f} M" if params >= 10**5 else f"{params:,}"
