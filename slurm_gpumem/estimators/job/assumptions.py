"""What an estimate takes for granted, in words: every default that nobody set."""

from __future__ import annotations

from typing import List, Optional, Tuple

from slurm_gpumem.estimators.allocator.allocator_settings import allocator_settings
from slurm_gpumem.estimators.job.versions import FOREACH, differences, follows
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.summaries.types import ModelSummary


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
