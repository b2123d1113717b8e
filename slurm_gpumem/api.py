"""The Python API: `from slurm_gpumem import estimate`."""

from __future__ import annotations

import os
from typing import Optional, Union

from slurm_gpumem.estimators.gpus import DEFAULT_GPU, find_gpu
from slurm_gpumem.estimators.training_job import StatedTraining, training_job
from slurm_gpumem.estimators.types import Estimate
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import ModelSummary


def estimate(
    summary: Union[str, os.PathLike[str], ModelSummary],
    *,
    batch_size: Optional[int] = None,
    optimizer: Optional[str] = None,
    precision: Optional[str] = None,
    gpu: str = DEFAULT_GPU,
    estimator: str = "auto",
    gpus: int = 1,
    grad_accumulation: Optional[int] = None,
    checkpointing: Optional[bool] = None,
    channels_last: Optional[bool] = None,
    loss: Optional[str] = None,
    input_dtype: Optional[str] = None,
) -> Estimate:
    """Estimate the peak GPU memory of training the model of `summary`: a path, the text, or `summarize`'s.

    What is not given is as the summary's trace was made, else adam, fp32 and no checkpointing.
    """
    model = summary if isinstance(summary, ModelSummary) else read_summary(summary)
    stated = StatedTraining(
        batch_size=batch_size,
        optimizer=optimizer,
        precision=precision,
        grad_accumulation=grad_accumulation,
        checkpointing=checkpointing,
        channels_last=channels_last,
        loss=loss,
        input_dtype=input_dtype,
    )
    from slurm_gpumem.utilization.predict import estimate_with_utilization

    job = training_job(model, stated, gpus=gpus)
    return estimate_with_utilization(estimator, model, job, find_gpu(gpu))
