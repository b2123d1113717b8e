"""GPUMemNet with its Transformer-based ensembles, which also look at the sequence of layers."""

from __future__ import annotations

from slurm_gpumem.estimators.published.gpumemnet import answer
from slurm_gpumem.estimators.published.gpumemnet.features import features
from slurm_gpumem.estimators.published.gpumemnet.network import encoders, encoders_class
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.summaries.types import ModelSummary

NAME = "gpumemnet-transformer"


def estimate(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    """The upper edge of the class that the Transformer-based ensemble answers."""
    found = features(summary, job.batch_size)
    network = encoders()[found.family]
    return answer(NAME, found, network["edges"][encoders_class(network, found)], job, gpu)
