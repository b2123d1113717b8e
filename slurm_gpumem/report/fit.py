"""The answer of `gpumem fit` for people: a sentence, a curve, what else would fit."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

from slurm_gpumem.estimators.largest import BatchLimit, BatchLimits
from slurm_gpumem.estimators.training_job import PRECISION_TITLES, optimizer_title
from slurm_gpumem.estimators.types import Estimate
from slurm_gpumem.report.estimate import describe_model
from slurm_gpumem.terminal.chart import Mark, Style, area_chart, axis_line, below, plot_width
from slurm_gpumem.text import count
from slurm_gpumem.units import ceil_div, format_at_least, format_mib

SCHEMA = "gpumem-fit/1"


def fit_lines(found: BatchLimits, shard_mib: int, style: Style) -> List[str]:
    """What is printed."""
    job = found.job
    words = [optimizer_title(job, found.summary.trace), PRECISION_TITLES[job.precision]]
    words += [f"{job.gpus} GPUs"] if job.gpus > 1 else []
    words += ["checkpointing"] if job.checkpointing else []
    words += ["channels_last"] if job.channels_last else []
    lines = [f"{describe_model(found.summary)}, {', '.join(words)}"]
    if len(found.limits) > 1:
        return [*lines, *_table(found.limits, shard_mib)]
    (answer,) = found.limits
    lines += _sentences(found.asked, answer, shard_mib)
    if found.curve:
        lines += ["", *_curve(answer, found.curve, style)]
    return lines


def fit_json(found: BatchLimits, shard_mib: int, notes: Sequence[str]) -> Dict[str, Any]:
    """The same for programs."""
    job = found.job._asdict()
    if found.asked is None:
        del job["batch_size"]
    first = found.limits[0].estimate
    return {
        "schema": SCHEMA,
        "model": {"name": found.summary.name, "params": found.summary.total_params},
        "estimator": first.estimator,
        "job": job,
        "fits": [
            {
                "gpu": answer.gpu.name,
                "gpu_memory_mib": answer.gpu.memory_mib,
                "shards": answer.shards,
                "limit_mib": answer.limit_mib,
                "fits": answer.holds(found.asked),
                "batch_size": answer.batch,
                "batch_size_at_best": answer.batch_at_best,
                "at": _figures(answer.estimate, shard_mib),
            }
            for answer in found.limits
        ],
        "curve": [_figures(estimate, shard_mib) for estimate in found.curve],
        "warnings": list(first.warnings),
        "notes": list(notes),
    }


def _figures(estimate: Estimate, shard_mib: int) -> Dict[str, int]:
    return {
        "batch_size": estimate.job.batch_size,
        "peak_mib": estimate.peak_mib,
        "request_mib": estimate.request_mib,
        "shards": ceil_div(estimate.request_mib, shard_mib),
    }


def _sentences(asked: Optional[int], answer: BatchLimit, shard_mib: int) -> List[str]:
    place = _place(answer)
    if answer.batch_at_best is None:
        need = format_mib(answer.estimate.peak_mib)
        return [f"does not fit {place}: a batch of {answer.estimate.job.batch_size} needs {need}"]
    lines = []
    if asked is not None:
        if answer.batch is not None and asked <= answer.batch:
            lines.append(f"batch {asked} fits {place}")
        elif asked <= answer.batch_at_best:
            lines.append(f"batch {asked} should fit {place}, but its upper bound does not")
        else:
            lines.append(f"batch {asked} does not fit {place}")
    if answer.batch is None:
        lines.append(
            f"largest batch: {answer.batch_at_best} if the estimate is right; the upper bound of one sample "
            f"is {format_at_least(answer.estimate.request_mib)}"
        )
        return lines
    e = answer.estimate
    shards = f"= {count(ceil_div(e.request_mib, shard_mib), 'shard')}" if e.job.gpus == 1 else "of each GPU"
    lines.append(
        f"largest batch for {place}: {answer.batch:,} (peak {format_mib(e.peak_mib)}, request "
        f"{format_at_least(e.request_mib)} {shards})"
    )
    if answer.batch_at_best > answer.batch:
        lines.append(
            f"up to {answer.batch_at_best:,} if the estimate is exact and nothing is kept in reserve"
        )
    if answer.batch > 16 and answer.batch % 8:
        lines.append(f"the next multiple of 8 below: {answer.batch // 8 * 8:,}")
    return lines


def _place(answer: BatchLimit) -> str:
    gpus = answer.estimate.job.gpus
    if gpus > 1:
        return f"each of {gpus} {answer.gpu.name} ({_usable(answer)})"
    if answer.shards is None:
        return f"one {answer.gpu.name} ({_usable(answer)})"
    return f"{count(answer.shards, 'shard')} of one {answer.gpu.name} ({format_mib(answer.limit_mib)})"


def _usable(answer: BatchLimit) -> str:
    """ "39.0 of 40.0 GiB", or the one number where all of it is to be had."""
    total = format_mib(answer.gpu.memory_mib)
    if answer.limit_mib == answer.gpu.memory_mib:
        return total
    return f"{format_mib(answer.limit_mib).replace(' GiB', '')} of {total}"


def _curve(answer: BatchLimit, curve: Sequence[Estimate], style: Style) -> List[str]:
    columns = plot_width(style)
    first, last = curve[0].job.batch_size, curve[-1].job.batch_size
    values = [
        _between(curve, first + (last - first) * column / max(1, columns - 1)) for column in range(columns)
    ]
    mark = Mark(float(answer.limit_mib), _place(answer))
    lines = area_chart(values, style=style, height=10, mark=mark)
    labels: List[Tuple[int, str]] = [(0, str(first))]
    for batch in {answer.batch, answer.batch_at_best} - {None}:
        assert batch is not None
        at = round((batch - first) / max(1, last - first) * (columns - 1))
        labels.append((at, f"{'^' if not style.unicode else '▲'}{batch:,}"))
    labels.append((columns - 1, f"{last:,}"))
    caption = "batch size; the area is the best estimate of the peak"
    return [*lines, axis_line(columns, style), below(labels, columns), below([(0, caption)], columns)]


def _between(curve: Sequence[Estimate], batch: float) -> float:
    """The peak at any batch, on the line between the two nearest estimates."""
    for left, right in zip(curve, curve[1:]):
        low, high = left.job.batch_size, right.job.batch_size
        if batch <= high:
            part = (batch - low) / max(1, high - low)
            return left.peak_mib + (right.peak_mib - left.peak_mib) * max(0.0, part)
    return float(curve[-1].peak_mib)


def _table(answers: Sequence[BatchLimit], shard_mib: int) -> List[str]:
    shards = answers[0].shards
    where = "a whole GPU" if shards is None else count(shards, "shard")
    lines = [
        f"largest batch in {where}; 'at best' if the estimate is exact and nothing is kept in reserve",
        "",
    ]
    lines.append("GPU             usable    batch  at best      peak   request shards")
    for answer in answers:
        e = answer.estimate
        batch = f"{answer.batch:,}" if answer.batch else "-"
        best = f"{answer.batch_at_best:,}" if answer.batch_at_best else "-"
        needed = ceil_div(e.request_mib, shard_mib) if answer.batch else "-"
        lines.append(
            f"{answer.gpu.name:<12} {format_mib(answer.limit_mib):>9} {batch:>8} {best:>8} "
            f"{format_mib(e.peak_mib):>9} {format_at_least(e.request_mib):>9} {needed:>6}"
        )
    if any(answer.batch is None for answer in answers):
        lines += ["", "-: does not fit, not even one sample, whose figures are shown"]
    return lines
