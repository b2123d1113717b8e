"""One GPU as its driver reports it, through NVIDIA's own binding (pynvml: pip install nvidia-ml-py).

Nodes have a binding of their own in `node.nvml`, which needs no package.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Dict, NamedTuple, Optional

from slurm_gpumem.units import MIB

_LISTS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses")
"""An MPS client is only in the second list."""


class GpuIdentity(NamedTuple):
    """Identifies the GPU."""

    name: str
    driver: str


class GpuReading(NamedTuple):
    """One reading of one GPU."""

    used_mib: int
    total_mib: int
    processes: Dict[int, int]
    """MiB by pid, for the processes whose memory is reported."""


def visible_device() -> str:
    """The first device of CUDA_VISIBLE_DEVICES: an index or a UUID ("GPU-..."); "0" by default."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    return first or "0"


class NvmlGpu:
    """A GPU by index or UUID; the first visible one by default."""

    how = "NVML"

    def __init__(self, device: Optional[str] = None) -> None:
        """ModuleNotFoundError where pynvml is not installed, OSError where the driver does not answer."""
        device = visible_device() if device is None else device
        # By name: it has no type stubs, and it is no dependency of the package.
        self._nvml: Any = importlib.import_module("pynvml")
        try:
            self._nvml.nvmlInit()
            if device.isdigit():
                self._handle = self._nvml.nvmlDeviceGetHandleByIndex(int(device))
            else:
                self._handle = self._nvml.nvmlDeviceGetHandleByUUID(device)
        except self._nvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from None

    def identity(self) -> GpuIdentity:
        """Its name, and the driver's version."""
        name = self._nvml.nvmlDeviceGetName(self._handle)
        return GpuIdentity(_text(name), _text(self._nvml.nvmlSystemGetDriverVersion()))

    def read(self) -> GpuReading:
        """The GPU's memory and its processes' in MiB."""
        memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        processes = {pid: size // MIB for pid, size in self.processes().items() if size is not None}
        return GpuReading(int(memory.used) // MIB, int(memory.total) // MIB, processes)

    def processes(self) -> Dict[int, Optional[int]]:
        """Bytes by pid; None if the driver does not report the memory of a process."""
        found: Dict[int, Optional[int]] = {}
        for name in _LISTS:
            try:
                listed = getattr(self._nvml, name)(self._handle)
            except (AttributeError, self._nvml.NVMLError):
                continue  # not on this driver or GPU: the other list must do
            for process in listed:
                size = process.usedGpuMemory
                found[process.pid] = None if size is None else int(size)
        return found


def _text(value: Any) -> str:
    """Old pynvml versions return bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
