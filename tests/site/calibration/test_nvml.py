"""The one reader of NVML, against a driver whose answers are known."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any, List

import pytest

from slurm_gpumem.site.calibration.nvml import GPM_METRICS, GpuIdentity, GpuReading, NvmlGpu
from slurm_gpumem.site.calibration.process_memory import open_source
from slurm_gpumem.units import MIB


class _Error(Exception):
    pass


class _Driver(ModuleType):
    """What pynvml offers of a driver with two GPUs; the second has neither an MPS list nor counters."""

    NVMLError = _Error
    NVML_GPM_METRICS_GET_VERSION = 1

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.freed: List[int] = []
        self.samples = 0

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index > 1:
            raise _Error("Invalid Argument")
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return {"GPU-a": 0, "GPU-b": 1}[uuid]

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return f"GPU number {handle}".encode()

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.1"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=(handle + 1) * 1000 * MIB + 5, total=141_000 * MIB)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> Any:
        return [SimpleNamespace(pid=7, usedGpuMemory=600 * MIB), SimpleNamespace(pid=8, usedGpuMemory=None)]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: int) -> Any:
        if handle == 1:
            raise _Error("Not Supported")
        return [SimpleNamespace(pid=9, usedGpuMemory=300 * MIB)]

    def nvmlGpmQueryDeviceSupport(self, handle: int) -> Any:
        return SimpleNamespace(isSupportedDevice=int(handle == 0))

    def nvmlGpmSampleAlloc(self) -> int:
        self.samples += 1
        return self.samples

    def nvmlGpmSampleGet(self, handle: int, sample: int) -> None:
        assert handle == 0

    def nvmlGpmSampleFree(self, sample: int) -> None:
        self.freed.append(sample)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        return self.samples * 1000

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        return SimpleNamespace(metrics=[SimpleNamespace(metricId=0, value=0.0) for _ in range(8)])

    def nvmlGpmMetricsGet(self, request: Any) -> None:
        assert (request.version, request.sample1 < request.sample2) == (1, True)
        for metric in request.metrics[: request.numMetrics]:
            metric.value = 10.0 * metric.metricId


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> _Driver:
    made = _Driver()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return made


def test_a_gpu_is_read_with_the_processes_of_both_lists(driver: _Driver) -> None:
    gpu = NvmlGpu()
    assert gpu.identity() == GpuIdentity("GPU number 0", "570.1")
    assert gpu.read() == GpuReading(1000, 141_000, {7: 600, 9: 300})
    assert gpu.processes() == {7: 600 * MIB, 8: None, 9: 300 * MIB}
    assert gpu.used_bytes() == 1000 * MIB + 5


@pytest.mark.parametrize("visible", ["1", "1,0", "GPU-b"])
def test_the_first_visible_gpu_is_meant(
    driver: _Driver, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert NvmlGpu().identity().name == "GPU number 1"


def test_a_driver_without_the_second_list_still_answers(driver: _Driver) -> None:
    assert NvmlGpu("1").read().processes == {7: 600}


def test_activity_is_read_between_two_moments(driver: _Driver) -> None:
    counters = NvmlGpu().counters()
    first, last = counters.now(), counters.now()
    found = counters.between(first, last._replace(at=first.at + 2))
    assert found == {**{name: 10.0 * number for name, number in GPM_METRICS.items()}, "power_w": 0.5}
    counters.free(first)
    assert driver.freed == [first.sample]


def test_a_gpu_without_counters_is_told(driver: _Driver) -> None:
    with pytest.raises(OSError, match="no GPM counters"):
        NvmlGpu("1").counters()


def test_what_the_driver_refuses_is_an_os_error(driver: _Driver) -> None:
    with pytest.raises(OSError, match="NVML: Invalid Argument"):
        open_source("5")


def test_calibration_reads_nvml_where_it_is_installed(driver: _Driver) -> None:
    assert open_source().how == "NVML"


def test_without_the_binding_the_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(ModuleNotFoundError, match="pynvml"):
        NvmlGpu()
