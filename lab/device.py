"""What the GPU is, and how full it is now, read by children so that the parent never touches CUDA."""

from __future__ import annotations

import mmap
import os
import platform
import signal
import struct
import time
from typing import Any, Dict, Optional

import torch

from lab.children import Children
from slurm_gpumem.site.calibration.nvml import NvmlGpu
from slurm_gpumem.units import MIB


def describe_device(device: str, versions: Dict[str, str]) -> Dict[str, Any]:
    """Versions, driver and GPU, for the data card."""
    about: Dict[str, Any] = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "versions": versions,
        "cuda": str(torch.version.cuda),
    }
    if device != "cuda":
        return about
    children = Children()
    children.start("probe", _probe, 60)
    while len(children):
        for ended in children.wait(1):
            about.update(ended.answer or {"error": ended.error})
    return about


def _probe() -> Dict[str, Any]:
    torch.zeros(1, device="cuda")
    gpu = NvmlGpu()
    return {
        "gpu": torch.cuda.get_device_name(0),
        "gpu_mib": torch.cuda.get_device_properties(0).total_memory >> 20,
        "driver": gpu.identity().driver,
        "cudnn": torch.backends.cudnn.version(),
        "own_pid_listed": os.getpid() in gpu.processes(),
        "free_mib": torch.cuda.mem_get_info()[0] >> 20,
    }


class UsedMemory:
    """The GPU's used memory, refreshed a few times a second by a forked watcher."""

    def __init__(self, device: str) -> None:
        self._shared = mmap.mmap(-1, 8)
        self._pid: Optional[int] = None
        if device == "cuda":
            pid = os.fork()
            if pid == 0:
                self._watch(os.getppid())
            self._pid = pid

    @property
    def mib(self) -> float:
        return float(struct.unpack("d", self._shared[:8])[0])

    def close(self) -> None:
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = None

    def _watch(self, parent: int) -> None:
        try:
            gpu = NvmlGpu()
            while os.getppid() == parent:
                self._shared[:8] = struct.pack("d", gpu.used_bytes() / MIB)
                time.sleep(0.2)
        finally:
            os._exit(0)
