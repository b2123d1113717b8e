"""NVML's quirks, against a library that has them: the real one needs a GPU."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence, Tuple

import pytest

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.formats.live import GpuSample
from slurm_gpumem.node.nvml import Nvml, NvmlError
from slurm_gpumem.node.sources.base import GpuProcess, SourceError
from slurm_gpumem.node.sources.choose import choose_source
from slurm_gpumem.node.sources.nvml import GpmSource, NvmlSource
from slurm_gpumem.units import MIB

NOT_SUPPORTED, INSUFFICIENT, TIMEOUT, LOST = 3, 7, 10, 15
UNKNOWN = 0xFFFFFFFFFFFFFFFF


class FakeLibrary:
    """Only the functions that a driver exports are attributes."""

    def __init__(self, functions: Dict[str, Callable[..., int]]) -> None:
        self.calls: List[str] = []
        self.__dict__.update({name: self._counted(name, function) for name, function in functions.items()})

    def _counted(self, name: str, function: Callable[..., int]) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            return function(*arguments)

        return call


def driver(
    *, version: str = "_v3", processes: Sequence[Tuple[int, int]] = (), **more: Callable[..., int]
) -> FakeLibrary:
    def count(pointer: Any) -> int:
        pointer._obj.value = 1
        return 0

    def handle(index: Any, pointer: Any) -> int:
        pointer._obj.value = 77
        return 0

    def uuid(handle: Any, buffer: Any, size: Any) -> int:
        buffer.value = b"GPU-aa"
        return 0

    def listed(handle: Any, count: Any, infos: Any) -> int:
        room, count._obj.value = count._obj.value, len(processes)
        if room < len(processes):
            return INSUFFICIENT
        for place, (pid, used) in enumerate(processes):
            infos[place].pid, infos[place].used = pid, used
        return 0

    functions: Dict[str, Callable[..., int]] = {
        "nvmlInit_v2": lambda: 0,
        "nvmlShutdown": lambda: 0,
        "nvmlDeviceGetCount_v2": count,
        "nvmlDeviceGetHandleByIndex_v2": handle,
        "nvmlDeviceGetUUID": uuid,
        f"nvmlDeviceGetComputeRunningProcesses{version}": listed,
    }
    return FakeLibrary({**functions, **more})


def opened(library: FakeLibrary) -> Nvml:
    nvml = Nvml(library)
    assert nvml.devices() == [(0, "GPU-aa")]
    return nvml


@pytest.mark.parametrize("version", ["_v3", "_v2", ""])
def test_the_newest_process_list_that_the_driver_has_is_used(version: str) -> None:
    nvml = opened(driver(version=version, processes=[(5, 100 * MIB), (6, 3 * MIB)]))
    assert nvml.processes("GPU-aa") == [(5, 100.0), (6, 3.0)]


def test_memory_that_the_driver_does_not_know_is_none_not_huge() -> None:
    assert opened(driver(processes=[(5, UNKNOWN)])).processes("GPU-aa") == [(5, None)]


def test_more_processes_than_expected_are_asked_for_again() -> None:
    many = [(pid, pid * MIB) for pid in range(1, 301)]
    assert len(opened(driver(processes=many)).processes("GPU-aa")) == 300


@pytest.mark.parametrize(
    "value", ["minor", "memory_mib", "utilization", "power_w", "energy_j", "mps_processes"]
)
def test_a_value_that_the_driver_lacks_is_none(value: str) -> None:
    assert getattr(opened(driver()), value)("GPU-aa") is None


def test_the_drivers_version_is_a_text() -> None:
    def version(buffer: Any, size: Any) -> int:
        buffer.value = b"570.1"
        return 0

    assert opened(driver(nvmlSystemGetDriverVersion=version)).driver() == "570.1"


def test_a_value_that_the_gpu_does_not_support_is_none() -> None:
    library = driver(nvmlDeviceGetPowerUsage=lambda *_: NOT_SUPPORTED)
    assert opened(library).power_w("GPU-aa") is None


def test_a_gpu_off_the_bus_is_an_error_that_the_sampler_survives() -> None:
    nvml = opened(driver(nvmlDeviceGetMemoryInfo=lambda *_: LOST))
    with pytest.raises(NvmlError) as raised:
        nvml.memory_mib("GPU-aa")
    assert raised.value.lost
    with pytest.raises(SourceError, match="nvmlDeviceGetMemoryInfo"):
        NvmlSource(nvml, []).sample("GPU-aa")


def test_without_the_library_there_is_an_oserror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_gpumem.node.nvml.LIBRARY", "libnvidia-ml-missing.so.1")
    with pytest.raises(OSError, match="libnvidia-ml-missing"):
        Nvml()


def test_mps_clients_are_told_from_other_processes() -> None:
    def clients(handle: Any, count: Any, infos: Any) -> int:
        count._obj.value = 2
        infos[0].pid, infos[0].used = 5, 100 * MIB
        infos[1].pid, infos[1].used = 9, 40 * MIB
        return 0

    library = driver(
        processes=[(5, 100 * MIB), (6, 7 * MIB)], nvmlDeviceGetMPSComputeRunningProcesses_v3=clients
    )
    found = NvmlSource(opened(library), []).processes("GPU-aa")
    assert set(found) == {GpuProcess(5, 100.0, True), GpuProcess(6, 7.0, False), GpuProcess(9, 40.0, True)}


def test_clients_are_asked_for_when_a_process_is_new_and_now_and_then() -> None:
    there = [(5, 100 * MIB)]

    def clients(handle: Any, count: Any, infos: Any) -> int:
        count._obj.value = 1
        infos[0].pid, infos[0].used = 5, 100 * MIB
        return 0

    library = driver(processes=there, nvmlDeviceGetMPSComputeRunningProcesses_v3=clients)
    source = NvmlSource(opened(library), [])
    asked = "nvmlDeviceGetMPSComputeRunningProcesses_v3"
    for _ in range(10):
        assert source.processes("GPU-aa") == (GpuProcess(5, 100.0, True),)
    assert library.calls.count(asked) == 1
    there.append((6, MIB))
    assert source.processes("GPU-aa")[1] == GpuProcess(6, 1.0, False)
    assert library.calls.count(asked) == 2
    for _ in range(11):
        source.processes("GPU-aa")
    assert library.calls.count(asked) == 3


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_counter_that_is_no_number_is_none(odd: float) -> None:
    def metrics(pointer: Any) -> int:
        pointer._obj.metrics[0].value = odd
        return 0

    library = driver(
        nvmlGpmSampleAlloc=lambda *_: 0, nvmlGpmSampleGet=lambda *_: 0, nvmlGpmMetricsGet=metrics
    )
    source = GpmSource(NvmlSource(opened(library), []))
    source.sample("GPU-aa")
    assert source.sample("GPU-aa").sm_active is None


def test_without_the_list_of_clients_nobody_is_said_to_be_outside_mps() -> None:
    assert NvmlSource(opened(driver(processes=[(5, MIB)])), []).processes("GPU-aa") == (
        GpuProcess(5, 1.0, None),
    )


def test_xids_are_told_once_and_waiting_never_blocks() -> None:
    pending = [79, 31]

    def wait(events: Any, data: Any, timeout: Any) -> int:
        assert timeout.value == 0
        if not pending:
            return TIMEOUT
        data._obj.device, data._obj.data = 77, pending.pop()
        return 0

    nvml = opened(
        driver(
            nvmlEventSetCreate=lambda *_: 0, nvmlDeviceRegisterEvents=lambda *_: 0, nvmlEventSetWait_v2=wait
        )
    )
    nvml.watch_xids(["GPU-aa"])
    assert nvml.xids() == [("GPU-aa", 31), ("GPU-aa", 79)]
    assert nvml.xids() == []


def test_a_driver_without_events_has_no_xids() -> None:
    nvml = opened(driver())
    nvml.watch_xids(["GPU-aa"])
    assert nvml.xids() == []


def test_gpm_needs_two_samples_and_leaves_out_what_it_lacks() -> None:
    def metrics(pointer: Any) -> int:
        request = pointer._obj
        asked = {request.metrics[place].id: request.metrics[place] for place in range(request.count)}
        asked[2].value, asked[3].code, asked[10].value = 50.0, 3, 25.0
        asked[5].value, asked[20].value, asked[21].value = math.nan, 310.5, 1e12
        return 0

    nvml = opened(
        driver(nvmlGpmSampleAlloc=lambda *_: 0, nvmlGpmSampleGet=lambda *_: 0, nvmlGpmMetricsGet=metrics)
    )
    source = GpmSource(NvmlSource(nvml, []))
    assert source.sample("GPU-aa").sm_active is None
    second = source.sample("GPU-aa")
    assert (second.sm_active, second.sm_occupancy, second.dram_active) == (0.5, None, 0.25)
    assert (second.tensor_active, second.pcie_tx_mib_s, second.pcie_rx_mib_s) == (None, 310.5, None)


def test_accounting_gives_the_peak_of_processes_that_are_gone() -> None:
    def mode(handle: Any, value: Any) -> int:
        value._obj.value = 1
        return 0

    def pids(handle: Any, count: Any, found: Any) -> int:
        count._obj.value = 1
        if found is not None:
            found[0] = 42
        return 0 if found is not None else INSUFFICIENT

    def stats(handle: Any, pid: Any, pointer: Any) -> int:
        assert pid.value == 42
        pointer._obj.max_memory, pointer._obj.start_us, pointer._obj.time_ms = 900 * MIB, 5_000_000, 1500
        return 0

    library = driver(
        nvmlDeviceGetAccountingMode=mode, nvmlDeviceGetAccountingPids=pids, nvmlDeviceGetAccountingStats=stats
    )
    assert opened(library).accounting_peaks("GPU-aa") == {42: (900.0, 5.0, 1.5)}
    assert opened(driver()).accounting_peaks("GPU-aa") == {}


def test_the_layouts_are_the_drivers() -> None:
    from slurm_gpumem.node import nvml

    assert ctypes.sizeof(nvml._ProcessV1) == 16
    assert ctypes.sizeof(nvml._ProcessV2) == 24
    assert ctypes.sizeof(nvml._GpmMetric) == 40
    assert nvml._GpmMetricsGet.metrics.offset == 24
    assert nvml._EventData.data.offset == 16
    assert nvml._AccountingStats.max_memory.offset == 8
    assert ctypes.sizeof(nvml._AccountingStats) == 56


def test_what_every_source_hands_on_and_which_one_a_node_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def energy(handle: Any, pointer: Any) -> int:
        pointer._obj.value = 5500
        return 0

    def gpm(handle: Any, pointer: Any) -> int:
        pointer._obj.supported = 1
        return 0

    values = ("DeviceGetTotalEnergyConsumption", "DeviceGetAccountingMode", "GpmSampleAlloc")
    odd: Dict[str, Any] = {f"nvml{name}": lambda *_: LOST for name in values}
    for make in (NvmlSource, lambda nvml, uuids: GpmSource(NvmlSource(nvml, uuids))):
        library = driver(processes=[(5, MIB)], nvmlDeviceGetTotalEnergyConsumption=energy)
        source = make(opened(library), [])
        assert (source.energy_j("GPU-aa"), source.energy_j("MIG-aa")) == (5.5, None)
        assert (source.xids(), source.finished("GPU-aa"), source.finished("MIG-aa")) == ([], {}, {})
        assert source.processes("GPU-aa") == (GpuProcess(5, 1.0, None),)
        source.close()
        assert library.calls[-1] == "nvmlShutdown"
        lost = make(opened(driver(**odd)), [])
        for ask in (lost.energy_j, lost.finished, *([lost.sample] if make is not NvmlSource else [])):
            with pytest.raises(SourceError, match="15"):
                ask("GPU-aa")
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "dcgmi").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "dcgmi").chmod(0o755)
    found = []
    for library in (driver(nvmlGpmQueryDeviceSupport=gpm), driver(), driver(nvmlInit_v2=lambda: 9)):
        monkeypatch.setattr(ctypes, "CDLL", lambda _, library=library: library)
        configs = [NodeConfig(source=name) for name in ("auto", "nvml", "gpm", "dcgm")]
        found += [choose_source(config, "n1", ()).name for config in configs]
    assert found == ["gpm", "nvml", "gpm", "nvml", *["nvml"] * 4, *["none"] * 4]
    nothing = choose_source(configs[0], "n1", ())
    told = (nothing.sample("GPU-aa"), nothing.processes("GPU-aa"), nothing.xids(), nothing.finished("GPU-aa"))
    assert (*told, nothing.energy_j("GPU-aa")) == (GpuSample(), (), (), {}, None)
