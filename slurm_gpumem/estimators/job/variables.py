"""What variables of the job's environment change in an estimate, and what of them is not simulated."""

from __future__ import annotations

from typing import List, Tuple

from slurm_gpumem.estimators.allocator.allocator_settings import allocator_settings, cublas_workspace_of
from slurm_gpumem.estimators.job.versions import EXPANDABLE_SEGMENTS, follows, in_version
from slurm_gpumem.estimators.types import Gpu, TrainingJob


def with_workspaces(gpu: Gpu, job: TrainingJob) -> Gpu:
    """The GPU with the cuBLAS workspaces that the job sets, else those of its PyTorch."""
    size = cublas_workspace_of(job.cublas_workspace)
    return in_version(gpu, job.torch) if size < 0 else gpu._replace(cublas_workspace_bytes=size)


def not_simulated(job: TrainingJob, gpu: Gpu) -> Tuple[str, ...]:
    """What the job sets that the estimate does not follow, in words."""
    settings = allocator_settings(job.alloc_conf)
    found: List[str] = list(settings.notes)
    if settings.expandable and not follows(EXPANDABLE_SEGMENTS, job.torch):
        found.append(
            f"PyTorch {job.torch} has no expandable_segments (since 2.1): the job would stop at its start"
        )
    if job.module_loading == "eager" and gpu.calibrated:
        found.append(
            f"modules are loaded eagerly, but the context is the one that this site measured on {gpu.name}: "
            "calibrate with CUDA_MODULE_LOADING=EAGER, or ask for more (on an H200 it is 1.3 GiB)"
        )
    if job.cublas_workspace and cublas_workspace_of(job.cublas_workspace) < 0:
        found.append(
            f"CUBLAS_WORKSPACE_CONFIG={job.cublas_workspace} is not like :4096:8; PyTorch takes its default"
        )
    return tuple(found)
