"""The Python API: `from slurm_gpumem import estimate`."""

from __future__ import annotations

import os
from typing import Optional, Union

from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.gpus import DEFAULT_GPU, find_gpu
from slurm_gpumem.estimators.types import OPTIMIZERS, Estimate, TrainingJob
from slurm_gpumem.summaries.reader import read_summary


def estimate(
    summary: Union[str, os.PathLike[str]],
    *,
    batch_size: Optional[int] = None,
    optimizer: Optional[str] = None,
    precision: Optional[str] = None,
    gpu: str = DEFAULT_GPU,
    estimator: str = "auto",
    gpus: int = 1,
    grad_accumulation: int = 1,
    checkpointing: bool = False,
    channels_last: bool = False,
    loss: str = "cross-entropy",
    input_dtype: str = "auto",
) -> Estimate:
    """Estimate the peak GPU memory of training the model of `summary` (a path or the text itself).

    Optimizer and precision are by default those of a summary's trace, else adam and fp32.
    """
    model = read_summary(summary)
    traced = model.trace.job if model.trace is not None else None
    known = traced.optimizer if traced is not None and traced.optimizer in OPTIMIZERS else "adam"
    batch = batch_size if batch_size is not None else model.batch
    if batch is None:
        raise UsageError("the summary does not say its batch size; give one (--batch-size 128)")
    job = TrainingJob(
        batch_size=batch,
        optimizer=optimizer or known,
        precision=precision or (traced.precision if traced is not None else "fp32"),
        gpus=gpus,
        grad_accumulation=grad_accumulation,
        checkpointing=checkpointing,
        channels_last=channels_last,
        loss=loss,
        input_dtype=input_dtype,
    )
    from slurm_gpumem.utilization.predict import with_utilization

    place = find_gpu(gpu)
    return with_utilization(registry.run(estimator, model, job, place), place, model)
