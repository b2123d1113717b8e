"""Horus's formula as the scripts behind the published comparison compute it.

Mem = (B·A + P) + B·G + d with G = P: a gradient for each parameter, and one such set for each sample. A is
counted as GPUMemNet counts it. Their scripts print the sum without d; the published bars are 800 MiB above
it, so d is 800 MiB here. `horus` has the other reading, a gradient for each activation.
"""

from __future__ import annotations

from slurm_gpumem.estimators.published.counting import mib, unbounded
from slurm_gpumem.estimators.published.gpumemnet.features import TRANSFORMER, counted, family_of
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.summaries.types import ModelSummary

_BYTES = 4
_START_MIB = 800


def estimate(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    """Their estimate; its request is its peak, since it knows no bound."""
    family = family_of(summary)
    rows = counted(summary, family)
    params = summary.total_params if family == TRANSFORMER else sum(row.params for row in rows)
    activations = sum(row.activations for row in rows)
    parts = {
        "weights": mib(params * _BYTES),
        "gradients": mib(params * job.batch_size * _BYTES),
        "activations": mib(activations * job.batch_size * _BYTES),
        "context": _START_MIB,
    }
    return unbounded("horus-authors", parts, job, gpu)
