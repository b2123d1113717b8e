"""Put the parts together: from a summary with a trace to an `Estimate`."""

from __future__ import annotations

from typing import Dict, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.memory.trace.replay import Timeline, replay
from slurm_gpumem.memory.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.model.trace_types import Trace
from slurm_gpumem.model.types import ModelSummary

_MIB = 1 << 20
_PART_OF = {
    "weights": "weights",
    "buffers": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "inputs": "activations",
    "activations": "activations",
    "workspace": "workspace",
}
_MARGIN = 0.1


def estimate(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    """The process's GPU memory, from the trace in the summary."""
    trace = summary.trace
    if trace is None:
        raise UsageError("this summary has no trace; `gpumem summarize` makes one from the model's code")
    timeline = replay(trace, job.batch_size, gpu)
    context = gpu.context_for(conv=trace.uses_conv, matmul=trace.uses_matmul)
    parts = parts_of(timeline, context)
    peak = sum(parts.values())
    return Estimate(
        peak_mib=peak,
        request_mib=round(peak * (1 + _MARGIN)),
        floor_mib=peak - parts["fragmentation"],
        parts=parts,
        estimator="trace",
        gpu=gpu.name,
        job=job,
        warnings=(*summary.warnings, *_warnings(trace, job)),
        assumptions=trace.remarks,
    )


def parts_of(timeline: Timeline, context: int) -> Dict[str, int]:
    """MiB by part, summing to what is reserved and the context."""
    found = dict.fromkeys(("weights", "gradients", "optimizer", "activations", "workspace"), 0)
    for category, size in timeline.at_peak.items():
        found[_PART_OF[category]] += size
    parts = {name: round(size / _MIB) for name, size in found.items()}
    parts["fragmentation"] = max(0, round(timeline.stats.peak_reserved / _MIB) - sum(parts.values()))
    parts["context"] = context
    return parts


def _warnings(trace: Trace, job: TrainingJob) -> Tuple[str, ...]:
    found = []
    if job.batch_size != trace.job.batch and not trace.scalable:
        found.append(f"the trace holds for batch size {trace.job.batch} only; trace again for another")
    if job.precision != trace.job.precision:
        found.append(f"traced with {trace.job.precision}, not {job.precision}; trace again for it")
    if trace.job.optimizer and job.optimizer != trace.job.optimizer:
        found.append(f"traced with {trace.job.optimizer}, not {job.optimizer}; trace again for it")
    return tuple(found)
