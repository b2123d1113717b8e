"""Ways to divide a training between several GPUs, side by side."""

from __future__ import annotations

from typing import List, Sequence, Tuple, Union

from slurm_gpumem.estimators.training_job import describe_job
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.report.estimate import describe_model
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.units import format_mib

_PARTS = ("weights", "gradients", "optimizer", "activations", "workspace")


def strategy_lines(
    summary: ModelSummary,
    job: TrainingJob,
    gpu: Gpu,
    found: Sequence[Tuple[str, Union[Estimate, str]]],
) -> List[str]:
    """What one GPU needs under each strategy, or why the model cannot be divided so."""
    lines = [
        f"{describe_model(summary)}, {describe_job(job, summary.trace)}, {gpu.name}",
        "on the GPU that needs most, computed, not measured:",
        "",
        f"{'strategy':<14}" + "".join(f"{name:>12}" for name in (*_PARTS, "peak", "fits")),
    ]
    refused = []
    for name, answer in found:
        if isinstance(answer, str):
            refused.append(answer)
            continue
        sizes = [answer.parts[part] for part in _PARTS] + [answer.peak_mib]
        fits = "yes" if answer.sure_mib <= gpu.usable_mib else "no"
        if fits == "no" and answer.peak_mib <= gpu.usable_mib:
            fits = "may"
        lines.append(f"{name:<14}" + "".join(f"{format_mib(size):>12}" for size in sizes) + f"{fits:>12}")
    return [*lines, *(["", *refused] if refused else [])]
