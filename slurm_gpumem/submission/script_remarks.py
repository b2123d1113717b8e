"""What a job's script says that does not go with the estimate: another batch size, preallocated memory."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, List, Optional, Tuple

from slurm_gpumem.submission.asked import Asked, Workload
from slurm_gpumem.submission.job_variables import VARIABLES

if TYPE_CHECKING:
    from slurm_gpumem.submission.reach import GpuModel
    from slurm_gpumem.summaries.types import ModelSummary

_BATCH = re.compile(
    r"(?<![\w-])(--(?:per[-_]device[-_])?(?:train[-_])?batch[-_]?size[= ]|[\w.]*batch_size=)[\"']?([0-9]+)\b"
)
"""As training scripts take it: --batch-size 256, --per_device_train_batch_size=8, batch_size=8."""
_PYTHON_FILE = re.compile(r"[\w./~-]+\.py\b")
_BENCHMARK = re.compile(r"(?m)^[^#\n]*\bcudnn\.benchmark\s*=\s*True\b")
_SETS_VARIABLE = re.compile(
    r"""(?m)^[^#\n]*\benviron(?:\[|\.setdefault\()\s*["']("""
    + "|".join(VARIABLES)
    + r""")["']\s*(?:\]\s*=[^=]|,)"""
)
_SOURCE_CAP = 1 << 20
_PREALLOCATES = re.compile(r"(?i)(?<![a-z])(?:jax|flax|tensorflow|keras)(?![a-z])|_tf\.py")
_SETTLED = ("XLA_PYTHON_CLIENT", "XLA_CLIENT_MEM_FRACTION", "TF_FORCE_GPU_ALLOW_GROWTH", "TF_GPU_ALLOCATOR")
"""Variables with which a script has already said how much it takes."""


def batch_remark(asked: Asked, workload: Workload) -> Optional[str]:
    """A line for the job whose command names another batch size than the estimate is for."""
    batch = workload.job.batch_size if workload.job else workload.line_batch
    if not batch or asked.gpus.gpus > 1:
        return None
    found: List[Tuple[str, str, int]] = []
    for where, line in _commands(asked):
        found += [(where, match[0], int(match[2])) for match in _BATCH.finditer(line)]
    if not found or any(number == batch for _, _, number in found):
        return None
    where, words, _ = found[0]
    return f"{where} has {words}, but the estimate is for a batch of {batch}: make them agree"


def variables_remark(asked: Asked, workload: Workload) -> Optional[str]:
    """For a memory line, which was made before: what the job sets that may not be in it."""
    if workload.line is None:
        return None
    given = [key for key in ("alloc-conf", "cublas-workspace") if asked.settings.text(key)]
    if not given:
        return None
    words = " and ".join(f"{key}={asked.settings.text(key)}" for key in given)
    return (
        f"the job sets {words}; a memory line holds for what was set when it was made. "
        "gpumem estimate --directive --write makes it again"
    )


def source_remarks(asked: Asked, summary: Optional[ModelSummary]) -> Tuple[str, ...]:
    """What Python files that the script runs set, and a text cannot show."""
    if summary is None or summary.trace is not None:
        return ()
    convolutions = any("conv" in layer.kind.lower() for layer in summary.layers)
    found: List[str] = []
    for name in sorted({name for _, line in _commands(asked) for name in _PYTHON_FILE.findall(line)}):
        try:
            with open(os.path.expanduser(name), "rb") as file:
                text = file.read(_SOURCE_CAP).decode("utf-8", "replace")
        except OSError:
            continue  # not here, or not ours to read: the job may find it where it runs
        if convolutions and _BENCHMARK.search(text):
            found.append(
                f"{name} sets cudnn.benchmark: cuDNN then tries algorithms with large workspaces, which a "
                "text cannot show; gpusbatch --trace counts them"
            )
        variable = _SETS_VARIABLE.search(text)
        if variable:
            found.append(
                f"{name} sets {variable[1]} itself, which the estimate does not follow; export it in the job "
                "script instead"
            )
    return tuple(found)


def preallocation_remark(
    asked: Asked, summary: Optional[ModelSummary], model: GpuModel, share_mib: int
) -> Optional[str]:
    """For TensorFlow and JAX on a shared GPU: what they take at the start, and the part that fits."""
    lines = [line for _, line in _commands(asked)]
    by_framework = summary is not None and summary.shows.preallocates
    if not (by_framework or any(_PREALLOCATES.search(line) for line in lines)):
        return None
    if any(name in line for line in lines for name in _SETTLED):
        return None
    total, context = _seen_memory(model)
    part = max(1, (share_mib - context) * 100 // total)
    return (
        "JAX takes 75 % of the whole GPU's memory at its start and TensorFlow nearly all of it, more than "
        "this share; the estimate follows PyTorch's allocator, which takes what it needs.\n"
        f"Write into the script: export XLA_PYTHON_CLIENT_MEM_FRACTION=0.{part:02} (JAX) or "
        "export TF_FORCE_GPU_ALLOW_GROWTH=true (TensorFlow)"
    )


def server_remarks(asked: Asked, model: GpuModel, share_mib: Optional[int]) -> Optional[str]:
    """For inference servers that size themselves by the whole GPU; `share_mib` None: the job has no share."""
    from slurm_gpumem.submission.server_fractions import server_remark, unshared_server_remark

    total, context = _seen_memory(model)
    if share_mib is None:
        return unshared_server_remark(_commands(asked), total, context)
    return server_remark(_commands(asked), total, context, share_mib)


def _seen_memory(model: GpuModel) -> Tuple[int, int]:
    """MiB that a process sees of a GPU, which is all of it whatever its limit is, and of the CUDA context."""
    from slurm_gpumem.estimators.gpus import closest_gpu

    gpu = model.find()
    whole = closest_gpu(gpu.name, None).memory_mib if gpu.entry else 0
    return max(gpu.memory_mib, whole), gpu.context_mib


def _commands(asked: Asked) -> List[Tuple[str, str]]:
    """Lines that run something, and the script's arguments, with where they stand."""
    found = []
    script = asked.script
    if script is not None:
        for number, line in enumerate(script.text().split("\n"), 1):
            if line.strip() and not line.lstrip().startswith("#"):
                found.append((f"{script.name}, line {number}:", line))
    if asked.words.line.script_args:
        found.append(("the command line", " ".join(asked.words.line.script_args)))
    wrapped = asked.options.get("wrap")
    if wrapped:
        found.append(("--wrap", wrapped))
    return found
