"""NVML through ctypes: the one place that knows the driver and its quirks.

No binding is imported: nodes may have nothing but Python, and a hook that starts for every job has
no time for a package. Nothing is loaded before `Nvml()` is made, and every call that a driver, a GPU
or a permission may lack answers None instead of failing.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import Structure, byref, c_char, c_char_p, c_double, c_uint, c_ulonglong, c_void_p
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

from slurm_gpumem.units import MIB

LIBRARY = "libnvidia-ml.so.1"

_SUCCESS, _NOT_SUPPORTED, _NO_PERMISSION, _NOT_FOUND = 0, 3, 4, 6
_INSUFFICIENT_SIZE, _TIMEOUT, _FUNCTION_NOT_FOUND, _GPU_IS_LOST = 7, 10, 13, 15
_NO_MEMORY_LIMIT = 0xFFFFFFFFFFFFFFFF
"""NVML_DEVICE_MEMORY_LIMIT_MAX."""
WHY_NO_LIMIT = {
    _NOT_SUPPORTED: "the driver does not support it here (MIG, or its memory accounting is off)",
    _NO_PERMISSION: "only root may",
    _NOT_FOUND: "the cgroup has no dmem files",
    _FUNCTION_NOT_FOUND: "this driver has no such limit, 615 and later have",
}
_ABSENT = (_NOT_SUPPORTED, _NO_PERMISSION, _NOT_FOUND, _FUNCTION_NOT_FOUND)
_NOT_AVAILABLE = 0xFFFFFFFFFFFFFFFF
"""NVML_VALUE_NOT_AVAILABLE: in usedGpuMemory when the driver does not know (some containers, vGPU)."""
_XID_EVENTS = 8
_MIG_ON = 1


class NvmlError(Exception):
    """An NVML call failed; `lost` when the GPU fell off the bus."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function}: NVML error {code}")
        self.code = code
        self.lost = code == _GPU_IS_LOST


class MigDevice(NamedTuple):
    """One MIG instance: to CUDA and NVML a device of its own."""

    uuid: str
    parent: str
    """UUID of its GPU."""
    gpu_instance: int
    compute_instance: int


class _Memory(Structure):
    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class _Utilization(Structure):
    _fields_ = [("gpu", c_uint), ("memory", c_uint)]


class _ProcessV1(Structure):
    _fields_ = [("pid", c_uint), ("used", c_ulonglong)]


class _ProcessV2(Structure):
    # The _v3 functions kept this layout; only the unversioned ones use the shorter one.
    _fields_ = [("pid", c_uint), ("used", c_ulonglong), ("gpu_instance", c_uint), ("compute", c_uint)]


class _AccountingStats(Structure):
    _fields_ = [
        ("gpu_percent", c_uint),
        ("memory_percent", c_uint),
        ("max_memory", c_ulonglong),
        ("time_ms", c_ulonglong),
        ("start_us", c_ulonglong),
        ("is_running", c_uint),
        ("reserved", c_uint * 5),
    ]


class _EventData(Structure):
    _fields_ = [
        ("device", c_void_p),
        ("kind", c_ulonglong),
        ("data", c_ulonglong),
        ("gpu_instance", c_uint),
        ("compute", c_uint),
    ]


class _SetMemoryLimits(Structure):
    # nvmlSetMemoryLimits_v1_t; `cgroup` is its nameSpace.
    _fields_ = [("cgroup", c_char_p), ("soft", c_ulonglong), ("hard", c_ulonglong)]


class _GetMemoryLimits(Structure):
    # nvmlGetMemoryLimits_v1_t
    _fields_ = [
        ("cgroup", c_char_p),
        ("soft", c_ulonglong),
        ("hard", c_ulonglong),
        ("used", c_ulonglong),
    ]


class _GpmSupport(Structure):
    _fields_ = [("version", c_uint), ("supported", c_uint)]


class _GpmMetric(Structure):
    _fields_ = [
        ("id", c_uint),
        ("code", c_uint),
        ("value", c_double),
        ("short_name", c_void_p),
        ("long_name", c_void_p),
        ("unit", c_void_p),
    ]


class _GpmMetricsGet(Structure):
    # The header's array is longer and grows with the driver; only `count` entries are ever touched.
    _fields_ = [
        ("version", c_uint),
        ("count", c_uint),
        ("sample1", c_void_p),
        ("sample2", c_void_p),
        ("metrics", _GpmMetric * 8),
    ]


class Nvml:
    """An initialised NVML; devices are handles kept by UUID."""

    def __init__(self, library: Optional[Any] = None) -> None:
        """Raises OSError without the library and NvmlError without a working driver."""
        self._lib: Any = ctypes.CDLL(LIBRARY) if library is None else library
        self._call("nvmlInit_v2")
        self._handles: Dict[str, Any] = {}
        self._versions: Dict[str, Optional[Tuple[Any, Any]]] = {}
        self._events: Optional[Any] = None
        self._instances: Dict[str, MigDevice] = {}

    def close(self) -> None:
        """Shut NVML down; a failure then concerns nobody."""
        self._lib.nvmlShutdown()

    def devices(self) -> List[Tuple[int, str]]:
        """(index, UUID) of every GPU that answers; one that fell off the bus is left out."""
        count = c_uint()
        self._call("nvmlDeviceGetCount_v2", byref(count))
        found = []
        for index in range(count.value):
            handle = c_void_p()
            try:
                self._call("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(handle))
                uuid = self._text("nvmlDeviceGetUUID", handle, 96)
            except NvmlError:
                continue
            self._handles[uuid] = handle
            found.append((index, uuid))
        return found

    def mig_devices(self, uuid: str) -> Optional[List[MigDevice]]:
        """The MIG instances of a GPU; None where it is not divided, or the driver knows no MIG.

        Empty is an answer: in MIG mode and without an instance nothing can run on it.
        """
        current, pending, most = c_uint(), c_uint(), c_uint()
        gpu = self._handle(uuid)
        if not self._ask("nvmlDeviceGetMigMode", gpu, byref(current), byref(pending)):
            return None
        if current.value != _MIG_ON or not self._ask("nvmlDeviceGetMaxMigDeviceCount", gpu, byref(most)):
            return None
        found = []
        for index in range(most.value):
            handle, instance, compute = c_void_p(), c_uint(), c_uint()
            try:
                # Places without an instance are "not found"; one may go between these calls.
                if (
                    self._ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu, c_uint(index), byref(handle))
                    and self._ask("nvmlDeviceGetGpuInstanceId", handle, byref(instance))
                    and self._ask("nvmlDeviceGetComputeInstanceId", handle, byref(compute))
                ):
                    own = self._text("nvmlDeviceGetUUID", handle, 96)
                    self._handles[own] = handle
                    found.append(MigDevice(own, uuid, instance.value, compute.value))
            except NvmlError as error:
                if error.lost:
                    raise
        kept = [known for known in self._instances.values() if known.parent != uuid]
        self._instances = {known.uuid: known for known in (*kept, *found)}
        return found

    def instance(self, uuid: str) -> Optional[MigDevice]:
        """The MIG instance of that UUID, looked for on all GPUs if it is new; None where there is none."""
        if uuid not in self._instances:
            for _, gpu in self.devices():
                self.mig_devices(gpu)
        return self._instances.get(uuid)

    def forget(self, uuid: str) -> None:
        """Look for an instance again: its handle ends with it, and its UUID may come back."""
        if self._instances.pop(uuid, None) is not None:
            self._handles.pop(uuid, None)

    def name(self, uuid: str) -> str:
        return self._text("nvmlDeviceGetName", self._handle(uuid), 96)

    def driver(self) -> str:
        """The driver's version."""
        buffer = (c_char * 80)()
        self._call("nvmlSystemGetDriverVersion", buffer, c_uint(80))
        return buffer.value.decode(errors="replace")

    def minor(self, uuid: str) -> Optional[int]:
        """The N of /dev/nvidiaN, which need not be NVML's index."""
        return self._number("nvmlDeviceGetMinorNumber", uuid, c_uint())

    def memory_mib(self, uuid: str) -> Optional[Tuple[float, float]]:
        """(used, total); used includes what the driver itself keeps."""
        memory = _Memory()
        if not self._ask("nvmlDeviceGetMemoryInfo", self._handle(uuid), byref(memory)):
            return None
        return memory.used / MIB, memory.total / MIB

    def utilization(self, uuid: str) -> Optional[float]:
        """Part of the last period in which any kernel ran, 0 to 1."""
        rates = _Utilization()
        if not self._ask("nvmlDeviceGetUtilizationRates", self._handle(uuid), byref(rates)):
            return None
        return float(rates.gpu) / 100

    def power_w(self, uuid: str) -> Optional[float]:
        milliwatts = self._number("nvmlDeviceGetPowerUsage", uuid, c_uint())
        return None if milliwatts is None else milliwatts / 1000

    def energy_j(self, uuid: str) -> Optional[float]:
        """Since the driver was loaded; Volta and later."""
        millijoules = self._number("nvmlDeviceGetTotalEnergyConsumption", uuid, c_ulonglong())
        return None if millijoules is None else millijoules / 1000

    def _number(self, function: str, uuid: str, value: Union[c_uint, c_ulonglong]) -> Optional[int]:
        return value.value if self._ask(function, self._handle(uuid), byref(value)) else None

    def processes(self, uuid: str) -> List[Tuple[int, Optional[float]]]:
        """(pid, MiB or None) of compute processes; MPS clients are among them."""
        return self._processes("nvmlDeviceGetComputeRunningProcesses", uuid) or []

    def mps_processes(self, uuid: str) -> Optional[List[Tuple[int, Optional[float]]]]:
        """The same for MPS clients alone; None when the driver cannot tell."""
        return self._processes("nvmlDeviceGetMPSComputeRunningProcesses", uuid)

    def accounting_peaks(self, uuid: str) -> Dict[int, Tuple[float, float, float]]:
        """pid → (peak MiB, start as Unix time, seconds), where the site enabled accounting; else empty."""
        mode, count = c_uint(), c_uint(0)
        handle = self._handle(uuid)
        if not self._ask("nvmlDeviceGetAccountingMode", handle, byref(mode)) or not mode.value:
            return {}
        self._lib.nvmlDeviceGetAccountingPids(handle, byref(count), None)
        pids = (c_uint * max(count.value, 1))()
        if not count.value or not self._ask("nvmlDeviceGetAccountingPids", handle, byref(count), pids):
            return {}
        peaks = {}
        for pid in pids[: count.value]:
            stats = _AccountingStats()
            if not self._ask("nvmlDeviceGetAccountingStats", handle, c_uint(pid), byref(stats)):
                continue
            if stats.max_memory != _NOT_AVAILABLE:
                peaks[pid] = (stats.max_memory / MIB, stats.start_us / 1e6, stats.time_ms / 1000)
        return peaks

    def limit_memory(self, uuid: str, cgroup: str, mib: Optional[int]) -> None:
        """Bound what all processes of a cgroup (its full path, version 2) hold of a GPU; None: no bound.

        For root, from driver 615 on; NvmlError says why not. The soft limit stays 0: it would reserve memory
        in the cgroups above, for good if Slurm removes the job's first, and let MPS end clients beyond it.
        """
        hard = _NO_MEMORY_LIMIT if mib is None else mib * MIB
        limits = _SetMemoryLimits(os.fsencode(cgroup), 0, hard)
        self._call("nvmlDeviceSetMemoryLimits_v1", self._handle(uuid), byref(limits))

    def memory_limit_mib(self, uuid: str, cgroup: str) -> Optional[float]:
        """That bound as the driver has it, which may have rounded it; None when there is none."""
        limits = _GetMemoryLimits(os.fsencode(cgroup), 0, 0, 0)
        self._call("nvmlDeviceGetMemoryLimits_v1", self._handle(uuid), byref(limits))
        return None if limits.hard == _NO_MEMORY_LIMIT else limits.hard / MIB

    def watch_xids(self, uuids: List[str]) -> None:
        """Subscribe to the driver's Xid errors; without support there will be none."""
        events = c_void_p()
        if not self._ask("nvmlEventSetCreate", byref(events)):
            return
        for uuid in uuids:
            self._ask("nvmlDeviceRegisterEvents", self._handle(uuid), c_ulonglong(_XID_EVENTS), events)
        self._events = events

    def xids(self) -> List[Tuple[Optional[str], int]]:
        """(UUID, Xid) since the last call; never waits. A whole GPU's is one of each of its instances."""
        found: List[Tuple[Optional[str], int]] = []
        wait = getattr(self._lib, "nvmlEventSetWait_v2", None)
        while wait is not None and self._events is not None and len(found) < 100:
            data = _EventData()
            code = wait(self._events, byref(data), c_uint(0))
            if code != _SUCCESS:
                break
            gpu = self._uuid_of(data.device)
            divided = [known for known in self._instances.values() if known.parent == gpu]
            hit = [known.uuid for known in divided if known[2:] == (data.gpu_instance, data.compute)]
            whose: List[Optional[str]] = [*(hit or [known.uuid for known in divided])]
            found += [(uuid, int(data.data)) for uuid in whose or [gpu]]
        return found

    def gpm_supported(self, uuid: str) -> bool:
        support = _GpmSupport(version=1)
        return self._ask("nvmlGpmQueryDeviceSupport", self._handle(uuid), byref(support)) and bool(
            support.supported
        )

    def gpm_sample(
        self, uuid: str, sample: Optional[c_void_p] = None, instance: Optional[MigDevice] = None
    ) -> Optional[c_void_p]:
        """Fill a sample (a new one without `sample`) of a GPU or of its `instance`; two make metrics."""
        if sample is None:
            sample = c_void_p()
            if not self._ask("nvmlGpmSampleAlloc", byref(sample)):
                return None
        if instance is not None:
            parent = self._handle(instance.parent)
            got = self._ask("nvmlGpmMigSampleGet", parent, c_uint(instance.gpu_instance), sample)
        else:
            got = self._ask("nvmlGpmSampleGet", self._handle(uuid), sample)
        return sample if got else None

    def gpm_metrics(
        self, first: c_void_p, second: c_void_p, ids: Mapping[str, int]
    ) -> Dict[str, Optional[float]]:
        """Values between two samples, percent or MiB per second, by the names given to its numbers.

        NaN where the counters were not running in between.
        """
        request = _GpmMetricsGet(version=1, count=len(ids), sample1=first, sample2=second)
        for place, metric in enumerate(ids.values()):
            request.metrics[place].id = metric
        if not self._ask("nvmlGpmMetricsGet", byref(request)):
            return dict.fromkeys(ids)
        return {
            name: metric.value if metric.code == _SUCCESS else None
            for name, metric in zip(ids, request.metrics)
        }

    def _processes(self, function: str, uuid: str) -> Optional[List[Tuple[int, Optional[float]]]]:
        chosen = self._versioned(function)
        if chosen is None:
            return None
        call, layout = chosen
        room = 64
        for _ in range(4):
            count, infos = c_uint(room), (layout * room)()
            code = call(self._handle(uuid), byref(count), infos)
            if code == _SUCCESS:
                return [
                    (info.pid, None if info.used == _NOT_AVAILABLE else info.used / MIB)
                    for info in infos[: count.value]
                ]
            if code in _ABSENT:
                return None
            if code != _INSUFFICIENT_SIZE:
                raise NvmlError(function, code)
            # `count` is how many there were; more may start before the next call.
            room = count.value * 2 + 16
        raise NvmlError(function, _INSUFFICIENT_SIZE)

    def _versioned(self, function: str) -> Optional[Tuple[Any, Any]]:
        """The newest of _v3, _v2 and the plain function that this driver exports, and its layout."""
        if function not in self._versions:
            self._versions[function] = None
            for suffix, layout in (("_v3", _ProcessV2), ("_v2", _ProcessV2), ("", _ProcessV1)):
                call = getattr(self._lib, function + suffix, None)
                if call is not None:
                    self._versions[function] = (call, layout)
                    break
        return self._versions[function]

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._handles:
            handle = c_void_p()
            self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), byref(handle))
            self._handles[uuid] = handle
        return self._handles[uuid]

    def _uuid_of(self, device: Optional[int]) -> Optional[str]:
        return next((uuid for uuid, handle in self._handles.items() if handle.value == device), None)

    def _text(self, function: str, handle: Any, size: int) -> str:
        buffer = (c_char * size)()
        self._call(function, handle, buffer, c_uint(size))
        return buffer.value.decode(errors="replace")

    def _call(self, function: str, *arguments: Any) -> None:
        call = getattr(self._lib, function, None)
        code = _FUNCTION_NOT_FOUND if call is None else call(*arguments)
        if code != _SUCCESS:
            raise NvmlError(function, code)

    def _ask(self, function: str, *arguments: Any) -> bool:
        """Call it; False when this driver, GPU or account does not have that value."""
        call = getattr(self._lib, function, None)
        if call is None:
            return False
        code = call(*arguments)
        if code in _ABSENT:
            return False
        if code != _SUCCESS:
            raise NvmlError(function, code)
        return True
