"""The one reader of NVML, against a driver whose answers are known."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from slurm_gpumem.site.calibration.nvml import GpuIdentity, GpuReading, NvmlGpu
from slurm_gpumem.site.calibration.process_memory import open_source
from slurm_gpumem.units import MIB


class _Error(Exception):
    pass


class _Driver(ModuleType):
    """What pynvml offers of a driver with two GPUs; the second has no MPS list."""

    NVMLError = _Error

    def __init__(self) -> None:
        super().__init__("pynvml")

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


@pytest.mark.parametrize("visible", ["1", "1,0", "GPU-b"])
def test_the_first_visible_gpu_is_meant(
    driver: _Driver, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert NvmlGpu().identity().name == "GPU number 1"


def test_a_driver_without_the_second_list_still_answers(driver: _Driver) -> None:
    assert NvmlGpu("1").read().processes == {7: 600}


def test_what_the_driver_refuses_is_an_os_error(driver: _Driver) -> None:
    with pytest.raises(OSError, match="NVML: Invalid Argument"):
        open_source("5")


def test_calibration_reads_nvml_where_it_is_installed(driver: _Driver) -> None:
    assert open_source().how == "NVML"


def test_without_the_binding_the_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(ModuleNotFoundError, match="pynvml"):
        NvmlGpu()
