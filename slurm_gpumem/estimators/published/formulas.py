"""Published formulas, for comparison on the same jobs. None knows a bound: request and floor are the peak.

Optimizer and precision enter only where a formula has them.
"""

from __future__ import annotations

from typing import Iterable, Mapping, Tuple

from slurm_gpumem.estimators.published.features import TRANSFORMER, counted, family_of
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.formats.comment import PART_NAMES
from slurm_gpumem.summaries.types import Layer, ModelSummary
from slurm_gpumem.units import MIB

_FULL, _HALF = 4, 2
"""Bytes of a number."""
_START_MIB = 800
_NO_NEW_TENSOR = frozenset(
    ("ReLU", "ReLU6", "LeakyReLU", "Hardswish", "Hardsigmoid", "Identity", "Flatten", "Unflatten", "Reshape",
     "InputLayer")
)  # fmt: skip
"""In place as model zoos write them, or views of their input."""


def horus(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    """Horus (Yeung et al., 2022): Mem = (B·A + P) + B·G + d.

    A is the number of activations of one sample, P the parameters, d the initialization overhead, here the
    CUDA context. What G counts is not said: here one gradient for each activation, as B·G asks for a number
    for each sample (a gradient for each parameter, times the batch, puts VGG-16 at batch 128 above 80 GB).
    """
    activations = _activations(summary, summary.leaves, job) * _FULL
    parts = {"weights": summary.total_params * _FULL, "gradients": activations, "activations": activations}
    return unbounded("horus", {**_in_mib(parts), "context": gpu.context_mib}, job, gpu)


def horus_authors(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    """Horus as the scripts behind the published comparison compute it: G = P, one such set for each sample.

    A is counted as GPUMemNet counts it. The scripts print the sum without d; the published bars are 800 MiB
    above it.
    """
    family = family_of(summary)
    rows = counted(summary, family)
    params = summary.total_params if family == TRANSFORMER else sum(row.params for row in rows)
    activations = sum(row.activations for row in rows)
    parts = {
        "weights": params * _FULL,
        "gradients": params * job.batch_size * _FULL,
        "activations": activations * job.batch_size * _FULL,
    }
    return unbounded("horus-authors", {**_in_mib(parts), "context": _START_MIB}, job, gpu)


def faketensor(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    """What FakeTensor tools report: the live tensors of a training step, as a summary shows them.

    It shows how far a perfect list of tensors is from the memory of a process. A model that does not use
    activation functions in place needs more than this says.
    """
    kept = (layer for layer in summary.leaves if layer.kind not in _NO_NEW_TENSOR)
    trainable = (summary.trainable_params or summary.total_params) * job.weight_bytes
    parts = {
        "weights": summary.total_params * job.weight_bytes,
        "gradients": trainable,
        "optimizer": trainable * job.optimizer_rule.states,
        "activations": _activations(summary, kept, job) * job.activation_bytes,
    }
    said = ("no allocator, no workspaces, no CUDA context", "activation functions in place")
    return unbounded("faketensor", _in_mib(parts), job, gpu, said)


def deepspeed(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    """DeepSpeed's count of the model's states without sharding; mixed precision adds a half copy."""
    trainable = (summary.trainable_params or summary.total_params) * _FULL
    mixed = job.activation_bytes < _FULL
    parts = {
        "weights": summary.total_params * (_FULL + (_HALF if mixed else 0)),
        "gradients": trainable,
        "optimizer": trainable * job.optimizer_rule.states,
    }
    said = ("model states only: no activations, no allocator, no CUDA context",)
    return unbounded("deepspeed", _in_mib(parts), job, gpu, said)


def unbounded(
    estimator: str, parts: Mapping[str, int], job: TrainingJob, gpu: Gpu, assumptions: Tuple[str, ...] = ()
) -> Estimate:
    """An estimate of an estimator that knows no bound, from MiB by part."""
    peak = sum(parts.values())
    return Estimate(
        peak_mib=peak,
        request_mib=peak,
        floor_mib=peak,
        parts={name: parts.get(name, 0) for name in PART_NAMES},
        estimator=estimator,
        gpu=gpu.name,
        job=job,
        assumptions=assumptions,
    )


def _activations(summary: ModelSummary, layers: Iterable[Layer], job: TrainingJob) -> int:
    """Numbers in the outputs of layers at the job's batch size."""
    return sum(summary.elements(shape, job.batch_size) for layer in layers for shape in layer.outputs)


def _in_mib(parts: Mapping[str, int]) -> Mapping[str, int]:
    return {name: round(size / MIB) for name, size in parts.items()}
