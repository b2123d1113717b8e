"""Horus's formula (Yeung et al., 2022): Mem = (B·A + P) + B·G + d, four bytes a number.

A is the number of activations of one sample, P the parameters, G the gradients,
d the initialization overhead. What G counts is not said; here it is one gradient for each
activation, as B·G asks for a number per sample (a gradient for each parameter, times the batch,
would put VGG-16 at batch 128 above 80 GB). d is the GPU's CUDA context. Optimizer and precision
do not enter. It is here so that every other estimator can be held against it on the same jobs.
"""

from __future__ import annotations

from slurm_gpumem.estimators.published.counting import activation_elements, leaves, mib, unbounded
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.summaries.types import ModelSummary

_BYTES = 4


def estimate(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    """Horus's estimate; its request is its peak, since it knows no bound."""
    activations = activation_elements(leaves(summary), summary.batch, job.batch_size)
    weights = mib(summary.total_params * _BYTES)
    forward = mib(activations * _BYTES)
    backward = forward
    parts = {
        "weights": weights,
        "gradients": backward,
        "activations": forward,
        "context": gpu.context_mib,
    }
    return unbounded("horus", parts, job, gpu)
