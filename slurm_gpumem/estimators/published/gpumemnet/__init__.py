"""GPUMemNet with its MLP-based ensembles: a class of memory, and its upper edge as the estimate.

Trained here, on data of the published size (models/gpumemnet.md says how, and where the published text and
the authors' code differ). It was made for training with Adam in fp32 on an A100 and knows no other.
"""

from __future__ import annotations

from slurm_gpumem.estimators.published.counting import unbounded
from slurm_gpumem.estimators.published.gpumemnet.features import Features, features
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.summaries.types import ModelSummary

NAME = "gpumemnet"


def estimate(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    """The upper edge of the class that the MLP-based ensemble answers."""
    from slurm_gpumem.estimators.published.gpumemnet.network import perceptrons, perceptrons_class

    found = features(summary, job.batch_size)
    network = perceptrons()[found.family]
    return answer(NAME, found, network["edges"][perceptrons_class(network, found)], job, gpu)


def answer(name: str, found: Features, edge_mib: int, job: TrainingJob, gpu: Gpu) -> Estimate:
    """A class's upper edge as an estimate; what it consists of is not known."""
    said = (
        f"its estimator for {found.family}s; the upper edge of a class of memory on an A100",
        "Adam in fp32; parts are not known: all counts as activations",
    )
    return unbounded(name, {"activations": edge_mib}, job, gpu, said)
