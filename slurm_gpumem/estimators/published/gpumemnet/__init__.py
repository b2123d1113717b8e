"""GPUMemNet: ensembles that answer a class of memory; its upper edge is the estimate.

Trained here, on data of the published size (lab/docs/gpumemnet.md says how, and where the published text and
the authors' code differ). It was made for training with Adam in fp32 on an A100 and knows no other.
"""

from __future__ import annotations

from slurm_gpumem.estimators.published.gpumemnet.features import Features, features
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.summaries.types import ModelSummary


def perceptrons(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    """By the ensembles of perceptrons."""
    from slurm_gpumem.estimators.published.gpumemnet import network

    found = features(summary, job.batch_size)
    able = network.perceptrons()[found.family]
    return _edge("gpumemnet", found, able["edges"][network.perceptrons_class(able, found)], job, gpu)


def transformer(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    """By the Transformer-based ensembles, which also look at the sequence of layers."""
    from slurm_gpumem.estimators.published.gpumemnet import network

    found = features(summary, job.batch_size)
    able = network.encoders()[found.family]
    return _edge("gpumemnet-transformer", found, able["edges"][network.encoders_class(able, found)], job, gpu)


def _edge(name: str, found: Features, edge_mib: int, job: TrainingJob, gpu: Gpu) -> Estimate:
    """A class's upper edge as an estimate."""
    from slurm_gpumem.estimators.published.formulas import unbounded

    said = (
        f"its estimator for {found.family}s; the upper edge of a class of memory on an A100",
        "Adam in fp32; parts are not known: all counts as activations",
    )
    return unbounded(name, {"activations": edge_mib}, job, gpu, said)
