"""What a job's script says that does not go with the estimate: another batch size, preallocated memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, List, Optional, Tuple

from slurm_gpumem.config.node import site_limits_jobs, site_shares
from slurm_gpumem.submission.job.job_variables import VARIABLES
from slurm_gpumem.submission.job.script_batch import PYTHON_FILE, named_batches, source_text
from slurm_gpumem.submission.submission import Submission, Workload

if TYPE_CHECKING:
    from slurm_gpumem.submission.candidate_gpus import GpuModel
    from slurm_gpumem.summaries.types import ModelSummary

# Patterns are compiled where they are used: most jobs need none of them.
_BENCHMARK = r"(?m)^[^#\n]*\bcudnn\.benchmark\s*=\s*True\b"
_PREFETCHES = (
    r"(?m)^[^#\n]*?(?:\b(?P<name>\w*[Pp]refetcher|PrefetchLoader|create_loader)\(|\b(?P<dali>nvidia\.dali)\b)"
)
"""Loaders that copy the next batch to the GPU while the step runs: Apex's data_prefetcher and what is written
after it, timm's create_loader (use_prefetcher is its default), DALI's pipelines."""
_SHARDS = (
    r"(?m)^[^#\n]*\b(FullyShardedDataParallel|fully_shard|parallelize_module|PipelineStage|"
    r"ZeroRedundancyOptimizer|deepspeed\.initialize)\b"
)
_SETS_VARIABLE = (
    r"""(?m)^[^#\n]*\benviron(?:\[|\.setdefault\()\s*["']("""
    + "|".join(VARIABLES)
    + r""")["']\s*(?:\]\s*=[^=]|,)"""
)
PREALLOCATION = (
    "JAX takes 75 % of the whole GPU's memory at its start and TensorFlow nearly all of it, unless set "
    "otherwise; the estimate follows PyTorch's allocator, which takes what it needs"
)
_PREALLOCATES = r"(?i)(?<![a-z])(?:jax|flax|tensorflow|keras)(?![a-z])|_tf\.py"
_SETTLED = ("XLA_PYTHON_CLIENT", "XLA_CLIENT_MEM_FRACTION", "TF_FORCE_GPU_ALLOW_GROWTH", "TF_GPU_ALLOCATOR")
"""Variables with which a script has already said how much it takes."""


def batch_remark(asked: Submission, workload: Workload) -> Optional[str]:
    """A line for the job whose command names another batch size than the estimate is for."""
    batch = workload.job.batch_size if workload.job else 0
    if not batch or asked.gpus.gpus > 1:
        return None
    found = [one for one in named_batches(asked.commands, asked.script_text) if one.size]
    if not found or any(one.size == batch for one in found):
        return None
    where, words, _ = found[0]
    return f"{where} has {words}, but the estimate is for a batch of {batch}: make them agree"


def source_remarks(asked: Submission, summary: Optional[ModelSummary]) -> Tuple[str, ...]:
    """What Python files that the script runs set, and a summary cannot show."""
    if summary is None or summary.trace is not None:
        return ()
    convolutions = any("conv" in layer.kind.lower() for layer in summary.layers)
    found: List[str] = []
    for name in sorted({name for _, line in asked.commands for name in re.findall(PYTHON_FILE, line)}):
        text = source_text(name)
        if convolutions and re.search(_BENCHMARK, text) and not site_limits_jobs():
            found.append(
                f"{name} sets cudnn.benchmark: cuDNN then tries algorithms with large workspaces, which a "
                "summary cannot show; gpusbatch --trace counts them"
            )
        prefetches = re.search(_PREFETCHES, text)
        if prefetches:
            found.append(
                f"{name} uses {prefetches['name'] or prefetches['dali']}: such loaders hold about one batch "
                "more on the GPU than a printed summary counts; gpusbatch --trace counts it"
            )
        shards = re.search(_SHARDS, text)
        if shards:
            found.append(
                f"{name} uses {shards[1]}: where it shards its model, this estimate is not that of any GPU; "
                f"{asked.settings.spelled('strategy')} fsdp keeps whole GPUs"
            )
        variable = re.search(_SETS_VARIABLE, text)
        if variable:
            found.append(
                f"{name} sets {variable[1]} itself, which the estimate does not follow; export it in the job "
                "script instead"
            )
    return tuple(found)


def preallocation_remark(asked: Submission) -> Optional[str]:
    """For TensorFlow and JAX on a shared GPU, where no TaskProlog of the site sets what they need."""
    lines = [line for _, line in asked.commands]
    if not any(re.search(_PREALLOCATES, line) for line in lines) or site_shares():
        return None
    if any(name in line for line in lines for name in _SETTLED):
        return None
    return (
        f"{PREALLOCATION}\n"
        "Write into the script: export XLA_PYTHON_CLIENT_PREALLOCATE=false (JAX) or "
        "export TF_FORCE_GPU_ALLOW_GROWTH=true (TensorFlow)"
    )


def server_remarks(asked: Submission, model: GpuModel, share_mib: Optional[int]) -> Optional[str]:
    """For inference servers that size themselves by the whole GPU; `share_mib` None: the job has no share."""
    from slurm_gpumem.submission.job.server_fractions import server_remark, unshared_server_remark

    total, context = _seen_memory(model)
    if share_mib is None:
        return unshared_server_remark(asked.commands, total, context)
    return server_remark(asked.commands, total, context, share_mib)


def _seen_memory(model: GpuModel) -> Tuple[int, int]:
    """MiB that a process sees of a GPU, which is all of it whatever its limit is, and of the CUDA context."""
    from slurm_gpumem.estimators.gpus import closest_gpu

    gpu = model.gpu
    whole = closest_gpu(gpu.name, None).memory_mib if gpu.entry else 0
    return max(gpu.memory_mib, whole), gpu.context_mib
