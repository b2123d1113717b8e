"""Processes whose memory does not show what they need: frameworks that take a part of the GPU at their start.

What a process is comes from what it has loaded and how it was started; what its user sets later, inside the
program, is not seen. So a job is only noted when it also holds most of what it may have.
"""

from __future__ import annotations

import re
from typing import Dict, Iterable, Optional

from slurm_gpumem.formats.job_record import PREALLOCATED
from slurm_gpumem.node import processes

_MOST = 0.6
"""Of the GPU's memory or the job's limit: JAX takes 75 % of it by default, TensorFlow and servers more."""
_SERVER = re.compile(
    r"(?:^|[/ ])vllm (?:serve|bench)|-m (?:vllm|sglang)\.|VLLM::|sglang::|text-generation-server"
)
_JAX = re.compile(r"/xla_cuda_plugin\.so|/jaxlib/xla_extension")
_TENSORFLOW, _TORCH = re.compile(r"/libtensorflow_(?:cc|framework)"), re.compile(r"/libtorch_cuda")
_NO = ("false", "False", "0")
_ON_DEMAND = ("platform", "cuda_async")


class Preallocators:
    """What each process on a GPU is, looked up once."""

    def __init__(self) -> None:
        self._known: Dict[int, str] = {}

    def note(
        self, pids: Iterable[int], held_mib: Optional[float], most_mib: Optional[float]
    ) -> Optional[str]:
        """What the record of a job with these processes should say; `most_mib` is what it may hold."""
        if not held_mib or not most_mib or held_mib < _MOST * most_mib:
            return None
        for pid in pids:
            name = self._known[pid] if pid in self._known else self._known.setdefault(pid, framework_of(pid))
            if name:
                return f"{PREALLOCATED} ({name}): what it needs is not known"
        return None

    def keep_only(self, pids: frozenset[int]) -> None:
        """Forget processes that are gone."""
        self._known = {pid: name for pid, name in self._known.items() if pid in pids}


def framework_of(pid: int) -> str:
    """Which one took memory in advance, "" for other processes."""
    if _SERVER.search(processes.command_line(pid)):
        return "an inference server"
    env, loaded = processes.environment(pid), processes.loaded(pid)
    if _JAX.search(loaded):
        settled = env.get("XLA_PYTHON_CLIENT_PREALLOCATE") in _NO
        return "" if settled or env.get("XLA_PYTHON_CLIENT_ALLOCATOR") in _ON_DEMAND else "JAX"
    # PyTorch programs load TensorFlow, too, for its TensorBoard.
    if _TENSORFLOW.search(loaded) and not _TORCH.search(loaded):
        return "" if env.get("TF_FORCE_GPU_ALLOW_GROWTH") == "true" else "TensorFlow"
    return ""
