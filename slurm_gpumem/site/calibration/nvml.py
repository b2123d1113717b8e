"""One GPU as its driver reports it, through NVIDIA's own binding (pynvml: pip install nvidia-ml-py).

The only module of calibration and laboratory that calls NVML. (Nodes have a binding of their own in
`node.nvml`, which needs no package.)
"""

from __future__ import annotations

import importlib
import os
import time
from typing import Any, Dict, NamedTuple, Optional

from slurm_gpumem.units import MIB

_LISTS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses")
"""An MPS client is only in the second list."""
GPM_METRICS = {"sm_active": 2, "sm_occupancy": 3, "tensor_active": 5, "dram_active": 10}
"""Name → NVML's number of the GPM metric; all in percent."""


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


class Moment(NamedTuple):
    """The activity counters at one moment (monotonic clock)."""

    at: float
    sample: Any
    energy_mj: int


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

    def used_bytes(self) -> int:
        """What is taken of the GPU's memory."""
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)

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

    def counters(self) -> GpmCounters:
        """Its activity counters; OSError where this GPU or its driver has none."""
        try:
            supported = bool(self._nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice)
        except (AttributeError, self._nvml.NVMLError):
            supported = False
        if not supported:
            raise OSError("this GPU or its driver has no GPM counters (Hopper and later have them)")
        return GpmCounters(self._nvml, self._handle)


class GpmCounters:
    """How busy a GPU is between two moments, by the driver's own counters (GPM)."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    def now(self) -> Moment:
        """Read the counters; `free` the moment later."""
        sample = self._nvml.nvmlGpmSampleAlloc()
        self._nvml.nvmlGpmSampleGet(self._handle, sample)
        return Moment(time.monotonic(), sample, self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))

    def between(self, first: Moment, last: Moment) -> Dict[str, float]:
        """Percent of each metric, and mean power in watts."""
        request = self._nvml.c_nvmlGpmMetricsGet_t()
        request.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(GPM_METRICS)
        request.sample1, request.sample2 = first.sample, last.sample
        for place, number in enumerate(GPM_METRICS.values()):
            request.metrics[place].metricId = number
        self._nvml.nvmlGpmMetricsGet(request)
        read = {name: round(float(request.metrics[place].value), 3) for place, name in enumerate(GPM_METRICS)}
        seconds = last.at - first.at
        read["power_w"] = round((last.energy_mj - first.energy_mj) / 1000 / seconds, 1)
        return read

    def free(self, moment: Moment) -> None:
        """Give the memory of a moment's counters back."""
        self._nvml.nvmlGpmSampleFree(moment.sample)


def _text(value: Any) -> str:
    """Old pynvml versions return bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
