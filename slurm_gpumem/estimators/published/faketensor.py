"""What FakeTensor tools report: the live tensors of a training step, told from the summary's text.

Such tools run the model on tensors without storage and add up the sizes of those that are alive.
From a summary the same sum is: weights, their gradients, the optimizer's states, and every
layer's output, which some layer's backward pass keeps. There is no caching allocator in it, no
workspace and no CUDA context, and this is what it is here to show: how far a perfect list of
tensors is from the memory of a process. Activation functions and reshapes write into what is
there already and count nothing; a model that does not use them in place needs more than this says.
"""

from __future__ import annotations

from slurm_gpumem.estimators.published.counting import activation_elements, leaves, mib, unbounded
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.summaries.types import ModelSummary

# In place as model zoos write them, or views of their input.
_NO_NEW_TENSOR = {
    "ReLU",
    "ReLU6",
    "LeakyReLU",
    "Hardswish",
    "Hardsigmoid",
    "Identity",
    "Flatten",
    "Unflatten",
    "Reshape",
    "InputLayer",
}


def estimate(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    """The live tensors; neither the request nor the floor knows more than the peak."""
    kept = (layer for layer in leaves(summary) if layer.kind not in _NO_NEW_TENSOR)
    activations = activation_elements(kept, summary.batch, job.batch_size) * job.activation_bytes
    trainable = summary.trainable_params or summary.total_params
    parts = {
        "weights": mib(summary.total_params * job.weight_bytes),
        "gradients": mib(trainable * job.weight_bytes),
        "optimizer": mib(trainable * job.weight_bytes * job.optimizer_rule.states),
        "activations": mib(activations),
    }
    return unbounded(
        "faketensor",
        parts,
        job,
        gpu,
        ("no allocator, no workspaces, no CUDA context", "activation functions in place"),
    )
