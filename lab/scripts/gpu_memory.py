"""A process tree's memory on the GPU, as NVML counts it."""

from __future__ import annotations

import importlib
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, List


@lru_cache(maxsize=1)
def _handle() -> Any:
    nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    return nvml, nvml.nvmlDeviceGetHandleByIndex(0)


def process_peaks(pid: int) -> int:
    """Bytes that the tree of `pid` has now: those of its largest process."""
    nvml, gpu = _handle()
    mine = {pid, *_descendants(pid)}
    running = nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    return max((int(one.usedGpuMemory or 0) for one in running if one.pid in mine), default=0)


def gpu_facts() -> Dict[str, Any]:
    """The GPU's name and memory, for the row."""
    nvml, gpu = _handle()
    name = nvml.nvmlDeviceGetName(gpu)
    return {
        "gpu": name.decode() if isinstance(name, bytes) else name,
        "gpu_mib": int(nvml.nvmlDeviceGetMemoryInfo(gpu).total) >> 20,
    }


def _descendants(pid: int) -> List[int]:
    found: List[int] = []
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        try:
            children = [int(word) for word in Path(f"/proc/{one}/task/{one}/children").read_text().split()]
        except (OSError, ValueError):
            continue  # ended in between
        found += children
        waiting += children
    return found
