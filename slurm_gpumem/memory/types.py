"""The values that go into an estimate and come out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Optional, Protocol, Tuple

from slurm_gpumem.errors import UnknownNameError, UsageError
from slurm_gpumem.model.types import ModelSummary

OPTIMIZERS = ("adam", "adamw", "sgd", "sgd-momentum")
PRECISIONS = ("fp32", "tf32", "amp-fp16", "amp-bf16", "bf16")
PARTS = ("weights", "gradients", "optimizer", "activations", "workspace", "fragmentation", "context")


@dataclass(frozen=True)
class TrainingJob:
    """How the model is trained: everything besides the model that decides its memory."""

    batch_size: int
    optimizer: str = "adam"
    precision: str = "fp32"

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UsageError(f"batch size must be at least 1, not {self.batch_size}")
        if self.optimizer not in OPTIMIZERS:
            raise UnknownNameError("optimizer", self.optimizer, list(OPTIMIZERS))
        if self.precision not in PRECISIONS:
            raise UnknownNameError("precision", self.precision, list(PRECISIONS))


@dataclass(frozen=True)
class Gpu:
    """What an estimate must know of a GPU type; an entry of models/gpus.toml."""

    name: str
    memory_mib: int
    context_mib: int
    """CUDA context and the libraries a training job usually loads."""


@dataclass(frozen=True)
class Estimate:
    """A job's GPU memory before it runs, in MiB, and where every MiB goes."""

    peak_mib: int
    """Best single number for the process's GPU memory."""
    request_mib: int
    """What to reserve: an upper bound."""
    floor_mib: int
    """Allocated plus context: under this it cannot run."""
    parts: Mapping[str, int]
    """MiB by PARTS; sums to peak_mib."""
    estimator: str
    gpu: str
    job: TrainingJob
    warnings: Tuple[str, ...] = ()
    assumptions: Tuple[str, ...] = ()
    coverage: Optional[float] = None
    """Share of jobs for which request_mib holds, where a model card proves one."""


class Estimator(Protocol):
    """What a module in this folder exports as `estimate`, to be listed in the registry."""

    def __call__(self, summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate: ...
