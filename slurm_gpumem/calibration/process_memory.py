"""This process's GPU memory, read from NVML or nvidia-smi for `gpumem calibrate`.

NVML lists processes by the pid of the host. Inside a container our own pid may differ, or
the list may be empty. So the reader remembers what was there before the process touched the GPU,
and uses the one process that is new, or else the growth of the whole GPU's memory.
"""

from __future__ import annotations

import importlib
import os
import subprocess
from dataclasses import dataclass
from typing import Any, Dict, Optional, Protocol, Tuple

_MIB = 2**20
_TIMEOUT_S = 20


@dataclass(frozen=True)
class GpuReading:
    """One reading of one GPU."""

    used_mib: int
    total_mib: int
    processes: Dict[int, int]
    """MiB by pid, for the processes whose memory is reported."""


@dataclass(frozen=True)
class GpuIdentity:
    """Identifies the GPU."""

    name: str
    driver: str


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
    device = visible_device() if device is None else device
    try:
        # Imported by name: no stubs, and not a dependency.
        pynvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return _NvidiaSmi(device)
    try:
        return _Nvml(pynvml, device)
    except pynvml.NVMLError as error:
        raise OSError(f"NVML: {error}") from None


def visible_device() -> str:
    """The first device of CUDA_VISIBLE_DEVICES: an index or a UUID ("GPU-..."); "0" by default."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    return first or "0"


class _Nvml:
    how = "NVML"

    def __init__(self, pynvml: Any, device: str) -> None:
        self._nvml = pynvml
        pynvml.nvmlInit()
        if device.isdigit():
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(int(device))
        else:
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(device)

    def identity(self) -> GpuIdentity:
        return GpuIdentity(
            name=_text(self._nvml.nvmlDeviceGetName(self._handle)),
            driver=_text(self._nvml.nvmlSystemGetDriverVersion()),
        )

    def read(self) -> GpuReading:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        processes: Dict[int, int] = {}
        # An MPS client is only in the second list.
        for lister in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses"):
            try:
                listed = getattr(self._nvml, lister)(self._handle)
            except (AttributeError, self._nvml.NVMLError):
                continue  # not on this driver or GPU: use the other list, or the whole GPU
            for process in listed:
                if process.usedGpuMemory is not None:
                    processes[process.pid] = int(process.usedGpuMemory) // _MIB
        return GpuReading(int(memory.used) // _MIB, int(memory.total) // _MIB, processes)


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


def _text(value: Any) -> str:
    """Old pynvml versions return bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
