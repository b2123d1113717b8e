"""This process's GPU memory, read from NVML or nvidia-smi for `gpumem calibrate`.

NVML lists processes by the pid of the host. Inside a container our own pid may differ, or
the list may be empty. So the reader remembers what was there before the process touched the GPU,
and uses the one process that is new, or else the growth of the whole GPU's memory.
"""

from __future__ import annotations

import os
import subprocess
from typing import Dict, Optional, Protocol, Tuple

from slurm_gpumem.site.calibration.nvml import GpuIdentity, GpuReading, NvmlGpu, visible_device

_TIMEOUT_S = 20


class GpuSource(Protocol):
    """A way to read one GPU."""

    how: str

    def identity(self) -> GpuIdentity: ...

    def read(self) -> GpuReading: ...


class OwnMemory:
    """This process's memory on a GPU, relative to what was there before."""

    def __init__(self, source: GpuSource) -> None:
        """Remember the GPU's current state; call it before the process creates its CUDA context."""
        self._source = source
        self._before = source.read()

    @property
    def crowded(self) -> bool:
        """Whether other processes were there before."""
        return bool(self._before.processes)

    def read(self) -> Tuple[int, str]:
        """MiB of this process, and how they were determined."""
        now = self._source.read()
        pid = os.getpid()
        if now.processes.get(pid):
            return now.processes[pid], f"{self._source.how}, own process"
        new = {p: mib for p, mib in now.processes.items() if p not in self._before.processes and mib}
        if len(new) == 1:
            return next(iter(new.values())), f"{self._source.how}, the only new process"
        return now.used_mib - self._before.used_mib, f"{self._source.how}, growth of the whole GPU"


def open_source(device: Optional[str] = None) -> GpuSource:
    """NVML through pynvml if installed, otherwise nvidia-smi; raises OSError if there is neither."""
    try:
        return NvmlGpu(device)
    except ModuleNotFoundError:
        return _NvidiaSmi(visible_device() if device is None else device)


class _NvidiaSmi:
    how = "nvidia-smi"

    def __init__(self, device: str) -> None:
        self._device = device

    def identity(self) -> GpuIdentity:
        name, driver = self._ask("--query-gpu=name,driver_version").split(",")
        return GpuIdentity(name.strip(), driver.strip())

    def read(self) -> GpuReading:
        used, total = self._ask("--query-gpu=memory.used,memory.total").split(",")
        processes: Dict[int, int] = {}
        for line in self._ask("--query-compute-apps=pid,used_memory").splitlines():
            pid, _, mib = line.partition(",")
            # "[N/A]" or "[Not Supported]" if the driver does not report it.
            if pid.strip().isdigit() and mib.strip().isdigit():
                processes[int(pid)] = int(mib)
        return GpuReading(int(used), int(total), processes)

    def _ask(self, query: str) -> str:
        command = ["nvidia-smi", "-i", self._device, query, "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except FileNotFoundError:
            raise OSError("neither pynvml (pip install nvidia-ml-py) nor nvidia-smi is installed") from None
        except subprocess.TimeoutExpired:
            raise OSError(f"nvidia-smi did not answer within {_TIMEOUT_S} s") from None
        if done.returncode != 0:
            raise OSError(f"nvidia-smi: {(done.stdout + done.stderr).strip()}")
        return done.stdout.strip()
