"""This process's GPU memory, read from NVML for `gpumem calibrate`.

NVML lists processes by the pid of the host. Inside a container our own pid may differ, or
the list may be empty. So the reader remembers what was there before the process touched the GPU,
and uses the one process that is new, or else the growth of the whole GPU's memory.
"""

from __future__ import annotations

import os
from typing import Dict, NamedTuple, Optional, Tuple

from slurm_gpumem.node.nvml import Nvml, NvmlError


class GpuReading(NamedTuple):
    """One reading of one GPU."""

    used_mib: int
    total_mib: int
    processes: Dict[int, int]
    """MiB by pid, for the processes whose memory is reported."""


class VisibleGpu:
    """The first GPU of CUDA_VISIBLE_DEVICES, an index or a UUID; OSError where no driver answers."""

    def __init__(self, nvml: Optional[Nvml] = None) -> None:
        device = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
        try:
            self._nvml = nvml or Nvml()
            self._uuid = dict(self._nvml.devices())[int(device)] if device.isdigit() else device
            self.name, self.driver = self._nvml.name(self._uuid), self._nvml.driver()
        except NvmlError as error:
            raise OSError(str(error)) from None
        except KeyError:
            raise OSError(f"NVML has no GPU {device}") from None

    def read(self) -> GpuReading:
        """The GPU's memory and its processes' in MiB."""
        used, total = self._nvml.memory_mib(self._uuid) or (0, 0)
        # MPS clients are on some drivers in a list of their own only.
        listed = [*self._nvml.processes(self._uuid), *(self._nvml.mps_processes(self._uuid) or ())]
        return GpuReading(int(used), int(total), {pid: int(mib) for pid, mib in listed if mib is not None})


class OwnMemory:
    """This process's memory on a GPU, relative to what was there before."""

    def __init__(self, gpu: VisibleGpu) -> None:
        """Remember the GPU's current state; call it before the process creates its CUDA context."""
        self._gpu = gpu
        self._before = gpu.read()

    @property
    def crowded(self) -> bool:
        """Whether other processes were there before."""
        return bool(self._before.processes)

    def read(self) -> Tuple[int, str]:
        """MiB of this process, and how they were determined."""
        now = self._gpu.read()
        pid = os.getpid()
        if now.processes.get(pid):
            return now.processes[pid], "NVML, own process"
        new = {p: mib for p, mib in now.processes.items() if p not in self._before.processes and mib}
        if len(new) == 1:
            return next(iter(new.values())), "NVML, the only new process"
        return now.used_mib - self._before.used_mib, "NVML, growth of the whole GPU"
