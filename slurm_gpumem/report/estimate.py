"""An estimate as text for people: one line, or estimators side by side.

`explained` has the table of --explain, `estimate_json` the answer for programs: a plain call loads neither.
"""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

from slurm_gpumem.estimators.allocator.allocator_settings import allocator_settings
from slurm_gpumem.estimators.registry import by_trace
from slurm_gpumem.estimators.training_job import describe_estimated
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.estimators.versions import FOREACH, differences, follows
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.terminal.bars import speaks_unicode
from slurm_gpumem.text import count
from slurm_gpumem.units import ceil_div, format_at_least, format_mib


def result_line(summary: ModelSummary, estimate: Estimate, shard_mib: int) -> str:
    """The answer in one line, and for which job it is one."""
    shards = share_words(estimate, shard_mib)
    arrow = "→" if speaks_unicode() else "->"
    return (
        f"{summary.name or 'model'}, {describe_estimated(summary, estimate)}, {estimate.gpu} {arrow} "
        f"peak {format_mib(estimate.peak_mib)}, request {format_at_least(estimate.request_mib)} "
        f"{shards}"
    )


def share_words(estimate: Estimate, shard_mib: int) -> str:
    """What the request is of a GPU: shards of one, or nothing to be asked for of several."""
    if estimate.job.gpus > 1:
        return "of each GPU"
    return f"= {count(ceil_div(estimate.request_mib, shard_mib), 'shard')}"


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
    if estimate.sure_mib <= gpu.usable_mib or (
        estimate.margin.wanted_mib and estimate.peak_mib <= gpu.usable_mib
    ):
        # What only the margin makes too large is among the warnings.
        return []
    total = format_mib(gpu.memory_mib)
    usable = f", of which jobs can use {format_mib(gpu.usable_mib)}" if gpu.reserve_mib else ""
    if estimate.peak_mib <= gpu.usable_mib:
        return [f"may not fit: the upper bound is more than one {gpu.name} has ({total}{usable})"]
    return [f"does not fit: one {gpu.name} has {total}{usable}"]


def warnings_of(summary: ModelSummary, estimate: Estimate) -> Tuple[str, ...]:
    """What the reader and the estimator warn of, each once, in order."""
    # What a summary leaves out does not matter where its model's own trace answers.
    by_text = summary.warnings if summary.trace is not None or not by_trace(estimate) else ()
    return tuple(dict.fromkeys((*by_text, *estimate.warnings)))


def _millions(params: int) -> str:
    if params >= 10**9:
        return f"{params / 1e9:.2f} G"
    return f"{params / 1e6:.1f} M" if params >= 10**5 else f"{params:,}"


def assumptions(
    summary: ModelSummary, job: TrainingJob, gpu: Gpu, estimate: Optional[Estimate] = None
) -> Tuple[str, ...]:
    """The defaults in force, then what the estimator itself assumed."""
    assumed: List[str] = []
    seen = _is_seen(summary, estimate)
    if not seen and job.loss == "cross-entropy":
        assumed.append("cross-entropy over the last layer's output")
    if not seen and not job.checkpointing:
        assumed.append("no checkpointing")
    if not seen and job.grad_accumulation == 1:
        assumed.append("no gradient accumulation")
    if job.gpus == 1:
        assumed.append("one GPU")
    if not seen and _has_convolutions(summary) and not job.channels_last:
        assumed.append("not channels_last")
    if not seen and job.input_dtype == "auto":
        assumed.append(f"input as {input_dtype(summary, job)}")
    if job.optimizer_rule.note:
        assumed.append(f"{job.optimizer_rule.title}: {job.optimizer_rule.note}")
    allocator = allocator_settings(job.alloc_conf).words
    allocator = f"PyTorch's allocator with {allocator}" if allocator else "PyTorch's default allocator"
    if follows(FOREACH, job.torch):
        assumed.append(f"{allocator} and foreach optimizer")
    else:
        assumed.append(allocator)
        assumed += differences(job.torch, attention=_has_attention(summary))
    if job.cublas_workspace:
        assumed.append(f"CUBLAS_WORKSPACE_CONFIG={job.cublas_workspace}")
    assumed += summary.remarks
    for line in estimate.assumptions if estimate else ():
        # An estimator may say a default in its own words around ours.
        if not any(known in line for known in assumed):
            assumed.append(line)
    return tuple(assumed)


def _is_seen(summary: ModelSummary, estimate: Optional[Estimate]) -> bool:
    """Whether the script itself was traced: its loss, its checkpoints and its batches are no assumption."""
    by_trace = estimate is not None and estimate.margin.group == "trace"
    return by_trace and summary.trace is not None and summary.trace.job.loss == "script"


def input_dtype(summary: ModelSummary, job: TrainingJob) -> str:
    """The batch's element type, decided: indices where an embedding comes first."""
    if job.input_dtype != "auto":
        return job.input_dtype
    first = next((layer for layer in summary.layers if layer.leaf), None)
    if first is not None and first.kind.startswith("Embedding"):
        return "int64"
    return "bf16" if job.precision == "bf16" else "fp32"


def _has_convolutions(summary: ModelSummary) -> bool:
    return any("conv" in layer.kind.lower() for layer in summary.layers)


def _has_attention(summary: ModelSummary) -> bool:
    return any("attention" in layer.kind.lower() for layer in summary.layers)
