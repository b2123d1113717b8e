"""An estimate explained: its table, the request and what would change it; with -v also why it is so."""

from __future__ import annotations

import textwrap
from typing import Dict, List, Optional, Sequence

from slurm_gpumem.estimators.environment import HELD_ELSEWHERE, left_open, without_context_margin
from slurm_gpumem.estimators.largest import Alternatives, Jump
from slurm_gpumem.estimators.margin import EXPLAINED, remedies, request_at
from slurm_gpumem.estimators.registry import by_trace
from slurm_gpumem.estimators.training_job import PRECISION_TITLES, describe_estimated
from slurm_gpumem.estimators.types import Estimate, Gpu
from slurm_gpumem.report.estimate import assumptions, describe_model, share_words
from slurm_gpumem.submission.share.activity import Activity
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.terminal.bars import parts_lines, speaks_unicode
from slurm_gpumem.text import count
from slurm_gpumem.units import ceil_div, exact_mib, format_mib

WIDTH = 96
_INDENT = " " * len("alone on the GPU: ")
_CAUSES: Dict[str, str] = {
    "workspace": "workspace: cuDNN takes another algorithm for a convolution",
    "fragmentation": "fragmentation: blocks that just fitted into freed ones no longer do",
    "activations": "activations",
}


def explain_lines(
    summary: ModelSummary, estimate: Estimate, gpu: Gpu, other: Alternatives, shard_mib: int
) -> List[str]:
    """Where every megabyte goes, what is asked for, and what would change it."""
    lines = [f"{describe_model(summary)}, {describe_estimated(summary, estimate)}, {estimate.gpu}"]
    lines += parts_lines(estimate.parts, unicode=speaks_unicode())
    width = max(len(name) for name in estimate.parts)
    sums = {"peak": estimate.peak_mib, "margin": estimate.request_mib - estimate.peak_mib}
    lines += [f"  {name:<{width}} {exact_mib(size):>13}" for name, size in sums.items()]
    lines.append(
        f"  {'request':<{width}} {exact_mib(estimate.request_mib):>13}  {share_words(estimate, shard_mib)}"
        f"{_covered(estimate, gpu)}"
    )
    lines += left_open(estimate.assumptions)
    changes = _changes(estimate, gpu, other, shard_mib)
    return [*lines, *(["what would change it:", *(f"  {line}" for line in changes)] if changes else [])]


def detail_lines(summary: ModelSummary, estimate: Estimate, gpu: Gpu, shard_mib: int) -> List[str]:
    """Requests at other coverages, how busy the job keeps the GPU, and what was assumed."""
    return [
        *_coverage_lines(estimate, gpu, shard_mib),
        *utilization_lines(estimate),
        *_wrapped("assumed: ", without_context_margin(assumptions(summary, estimate.job, gpu, estimate))),
    ]


def _covered(estimate: Estimate, gpu: Gpu) -> str:
    """How often such a request is enough, as far as it was measured."""
    if estimate.margin.coverage is None:
        return ""
    share, where = estimate.margin.coverage, ""
    if not (gpu.measured and gpu.workspaces_measured):
        # Summaries were compared with the same runs; a trace without convolutions carries over.
        unsure = not by_trace(estimate) or any(
            line.startswith("cuDNN workspaces on") for line in estimate.assumptions
        )
        if unsure and not gpu.workspaces_measured and share > HELD_ELSEWHERE:
            share, where = HELD_ELSEWHERE, f" ({gpu.name} not calibrated)"
        elif not gpu.measured:
            where = " (measured on other GPUs)"
    return f", enough for about {share * 100:.3g} % of such jobs{where}"


def _changes(estimate: Estimate, gpu: Gpu, other: Alternatives, shard_mib: int) -> List[str]:
    lines = []
    jobs = {"half the batch": other.half_batch, "checkpointing": other.checkpointing}
    if other.amp is not None:
        jobs[PRECISION_TITLES[other.amp.job.precision]] = other.amp
    smaller = [f"{name} needs {format_mib(one.peak_mib)}" for name, one in jobs.items() if one is not None]
    lines += _wrapped("", smaller)
    if other.fewer_shards is not None:
        lines.append(f"{other.batch_for_fewer} is the largest batch for {count(other.fewer_shards, 'shard')}")
    if other.jump is not None:
        lines.append(jump_line(other.jump, estimate))
    if estimate.margin.requests:
        lines += _wrapped("a smaller margin: ", remedies(estimate, gpu))
    return lines


def jump_line(jump: Jump, estimate: Estimate) -> str:
    """What makes the peak grow by more than the batch."""
    return (
        f"from batch {jump.batch} to {estimate.job.batch_size} the peak grows by "
        f"{format_mib(jump.grows_mib)}, {format_mib(jump.part_mib)} of it {_CAUSES.get(jump.part, jump.part)}"
    )


def _coverage_lines(estimate: Estimate, gpu: Gpu, shard_mib: int) -> List[str]:
    """The request at other coverages; nothing where the estimator knows one request only."""
    if not estimate.margin.requests:
        return []
    label = "request by --coverage: "
    lines: List[str] = []
    for coverage in EXPLAINED:
        mib = request_at(estimate.margin.requests, coverage)
        more = ", more than the GPU has" if mib > gpu.usable_mib else ""
        shards = count(ceil_div(mib, shard_mib), "shard")
        start = label if not lines else " " * len(label)
        lines.append(f"{start}{coverage:g}: {exact_mib(mib)} = {shards}{more}")
    return lines


def activity_line(activity: Optional[Activity]) -> List[str]:
    """What an accepted slowdown makes of the job's activity, where no partition is known yet."""
    if activity is None:
        return []
    return [
        f"its activity takes {activity.share * 100:.0f} % of the GPU "
        f"with a slowdown limit of {activity.limit:g}; the larger of this and memory decides"
    ]


def utilization_lines(estimate: Estimate) -> List[str]:
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
        f"{_INDENT}step {_time(utilization.step_seconds)} ({_time(shortest)} to {_time(longest)}), "
        f"bound by {bound}",
        *(line for warning in utilization.warnings for line in _folded(_INDENT + warning)),
    ]


def _folded(line: str) -> List[str]:
    return textwrap.wrap(line, WIDTH, initial_indent="", subsequent_indent=_INDENT, drop_whitespace=True)


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


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
