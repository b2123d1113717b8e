"""DeepSpeed-style parameter counting: the model's states only, as its ZeRO estimators do without sharding.

Its documentation counts, per parameter and with Adam in fp32, 4 bytes for the weight, 4 for the
gradient, 4 for the momentum and 4 for the variance; mixed precision adds a half-precision copy of
the weights (2 bytes). Activations, workspaces, the allocator and the context are left out by
design; they say so themselves. Other optimizers count as many states as they keep.
"""

from __future__ import annotations

from slurm_gpumem.estimators.published.counting import mib, unbounded
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.summaries.types import ModelSummary

_FULL = 4
_HALF = 2


def estimate(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    """Weights, gradients and optimizer states."""
    trainable = summary.trainable_params or summary.total_params
    mixed = job.activation_bytes < _FULL
    parts = {
        "weights": mib(summary.total_params * (_FULL + (_HALF if mixed else 0))),
        "gradients": mib(trainable * _FULL),
        "optimizer": mib(trainable * _FULL * job.optimizer_rule.states),
    }
    return unbounded(
        "deepspeed", parts, job, gpu, ("model states only: no activations, no allocator, no CUDA context",)
    )
